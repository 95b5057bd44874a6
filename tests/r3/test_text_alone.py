"""What R^3 would get wrong of pictures is refused, with row and way out."""

import io

import datasets
import pytest
from omegaconf import OmegaConf
from PIL import Image

from recipe.r3.text_alone import check_text_alone


def config(replay=True, **data):
    r3 = {"replay": {"enable": replay}}
    model = {"model": {"path": "folder"}}
    named = {"prompt_key": "prompt", "image_key": "images", "video_key": "videos"} | data
    return OmegaConf.create({"algorithm": {"r3": r3}, "actor_rollout_ref": model, "data": named})


def png(color: str) -> dict:
    Image.new("RGB", (4, 4), color).save(content := io.BytesIO(), "PNG")
    return {"bytes": content.getvalue(), "path": None}


def rows(**columns) -> datasets.Dataset:
    number = len(next(iter(columns.values())))
    return datasets.Dataset.from_dict({"prompt": [[{"role": "user", "content": "<image>Find x."}]] * number} | columns)


def test_two_pictures_under_the_same_words_are_refused():
    pictures = rows(images=[[], [png("red")], [png("blue")]])
    with pytest.raises(ValueError, match="data.train_files, row 1: images is not empty.*leave such rows out"):
        check_text_alone(pictures, config(), None)
    with pytest.raises(ValueError, match="row 0: photo is not empty"):
        check_text_alone(pictures.select([1]).rename_column("images", "photo"), config(image_key="photo"), None)


def test_columns_that_hold_nothing_pass():
    check_text_alone(rows(images=[[], None], videos=[None, None]), config(), None)


def test_rows_that_were_selected_are_the_ones_that_are_looked_at():
    check_text_alone(rows(images=[[png("red")], []]).select([1]), config(), None)


def test_messages_in_parts_are_refused():
    parts = [[{"role": "user", "content": [{"type": "text", "text": "Find x."}]}]]
    with pytest.raises(ValueError, match="row 0: the user message is in parts"):
        check_text_alone(datasets.Dataset.from_dict({"prompt": parts}), config(), None)


def test_positions_in_four_rows_are_refused_where_answers_are_replayed():
    class Qwen2VLProcessor:
        def get_rope_index(self):
            raise NotImplementedError

    class Gemma4Processor:
        pass

    words = rows(query_id=["a"])
    with pytest.raises(
        ValueError, match="positions in four rows .its processor is Qwen2VLProcessor.*replay.enable=False"
    ):
        check_text_alone(words, config(), Qwen2VLProcessor())
    check_text_alone(words, config(replay=False), Qwen2VLProcessor())
    check_text_alone(words, config(), Gemma4Processor())
