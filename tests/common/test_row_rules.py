"""Pictures, videos and sounds in the data are refused before anything is loaded."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from recipe.common.config.row_rules import rows_of_text


def told(folder, rows, **data):
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    files = {"train_files": str(folder / "rows.parquet"), "val_files": ["/not/there.parquet"]}
    return [broken.told for broken in rows_of_text(OmegaConf.create({"data": files | data}))]


@pytest.mark.parametrize("data, column", [({}, "images"), ({"image_key": "photos"}, "photos"), ({}, "audios")])
def test_the_first_row_with_a_medium_is_named(tmp_path, data, column):
    (sentence,) = told(tmp_path, [{"prompt": "a", column: []}, {"prompt": "b", column: [b"x"]}], **data)
    assert f"rows.parquet has {column} in row 1" in sentence


@pytest.mark.parametrize("rows", [[{"prompt": "a", "images": []}, {"prompt": "b", "images": None}], [{"prompt": "a"}]])
def test_empty_columns_and_none_are_text_alone(tmp_path, rows):
    assert told(tmp_path, rows) == []
