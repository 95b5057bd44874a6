"""`r3 doctor` on what a run is given: the model's files, the rows of the data, and the prompts."""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from r3_ext.data.write import SCHEMA
from r3_ext.doctor import data_files, model_files, prompts
from r3_ext.doctor.finding import FAIL, OK, WARN
from r3_ext.settings.compose import base_overrides, compose_config
from tests.ext.doctored import MODEL_CONFIG, as_json, levels, only, rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_environment")]


class TestModel:
    def test_a_model(self, config):
        finding = only(model_files.check_model(config), OK)
        assert finding.found.endswith("qwen2, 0.1 M parameters")

    @pytest.mark.parametrize("path", ["/no/such/folder", "no such model"])
    def test_neither_folder_nor_hub_name(self, config, path):
        config.actor_rollout_ref.model.path = path
        assert "neither" in only(model_files.check_model(config), FAIL).found

    def test_not_on_the_hub(self, config, monkeypatch):
        def unreachable(model, name):
            raise FileNotFoundError(name)

        monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
        for number, (is_there, why) in enumerate([(True, "gave FileNotFoundError"), (False, "cannot be reached")]):
            monkeypatch.setattr("r3_ext.host.hub.go_offline_if_unreachable", lambda is_there=is_there: is_there)
            config.actor_rollout_ref.model.path = f"nobody/nothing{number}"  # what is known of a name is kept
            assert why in only(model_files.check_model(config), FAIL).found
        assert model_files.check_tokenizer(config) == []  # one finding is enough

    def test_no_config(self, config, model):
        (model / "config.json").unlink()
        assert "has no config.json" in only(model_files.check_model(config), FAIL).found

    def test_broken_config(self, config, model):
        (model / "config.json").write_text("{")
        assert "not JSON" in only(model_files.check_model(config), FAIL).found

    @pytest.mark.parametrize("content", ["[]", '{"vocab_size": "many"}'])
    def test_a_config_that_is_not_one(self, config, model, content):
        (model / "config.json").write_text(content)
        assert "not the configuration of a model" in only(model_files.check_model(config), FAIL).found

    @pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 5}'])
    def test_a_broken_index(self, config, model, content):
        (model / "model.safetensors.index.json").write_text(content)
        assert "does not name weight files" in only(model_files.check_model(config), FAIL).found

    @pytest.mark.parametrize("content", ["{", "[]", '{"model": 5}'])
    def test_a_broken_tokenizer(self, config, model, content):
        (model / "tokenizer.json").write_text(content)
        assert levels(model_files.check_tokenizer(config)) == [FAIL]
        assert prompts.check_prompts(config) == []

    def test_no_weights(self, config, model):
        (model / "model.safetensors").unlink()
        assert "no weights" in only(model_files.check_model(config), FAIL).found

    def test_missing_shard(self, config, model):
        shards = {"a": "model.safetensors", "b": "model-2.safetensors"}
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
        assert "1 of 2 weight files missing: model-2" in only(model_files.check_model(config), FAIL).found

    def test_too_few_positions(self, config):
        config.data.max_response_length = 4096
        assert "2048 positions" in only(model_files.check_model(config), FAIL).found

    def test_no_tokenizer(self, config, model):
        # transformers makes an empty Qwen2 tokenizer of a folder that has a config.json only.
        (model / "tokenizer.json").unlink()
        assert "has none of tokenizer.json" in only(model_files.check_tokenizer(config), FAIL).found
        assert prompts.check_prompts(config) == []

    def test_tokenizer_of_a_larger_model(self, config, model):
        (model / "config.json").write_text(json.dumps({**MODEL_CONFIG, "vocab_size": 100}))
        assert "the model has 100 embeddings" in only(model_files.check_tokenizer(config), FAIL).found

    def test_no_chat_template(self, config, model):
        (model / "chat_template.jinja").unlink()
        assert only(model_files.check_tokenizer(config), FAIL).found == "no chat template"
        config.actor_rollout_ref.model.custom_chat_template = "{{ messages[0].content }}"
        assert levels(model_files.check_tokenizer(config)) == [OK]

    def test_a_tokenizer_of_llamas_kind_that_loses_its_spaces_is_found_and_the_way_out_works(self, config, model):
        """As in the Llama distills: a tokenizer.json of bytes, called Llama's, of which transformers makes another."""
        settings = json.loads((model / "tokenizer_config.json").read_text())
        (model / "config.json").write_text(json.dumps({**MODEL_CONFIG, "model_type": "llama"}))
        for kind, found in (("LlamaTokenizerFast", [OK, FAIL]), ("PreTrainedTokenizerFast", [OK])):
            (model / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": kind}))
            model_files.load_tokenizer.cache_clear()
            findings = model_files.check_tokenizer(config)
            assert levels(findings) == found
            if kind.startswith("Llama"):
                assert "'Howmanyare12and34?'" in findings[1].found and "PreTrainedTokenizerFast" in findings[1].advice

    def test_characters_that_a_tokenizer_does_not_know_are_told(self):
        words = Tokenizer(WordLevel({"[UNK]": 0, "How": 1, "many": 2}, unk_token="[UNK]"))
        words.pre_tokenizer = Whitespace()
        assert levels(model_files.round_trip(PreTrainedTokenizerFast(tokenizer_object=words))) == [WARN]


class TestData:
    def check(self, config, content, tmp_path):
        """Findings on training data with these rows."""
        config.data.train_files = as_json(tmp_path / "changed.json", content)
        return data_files.check_data(config)

    def test_json_works_too(self, config, tmp_path):
        assert levels(self.check(config, rows(16), tmp_path)) == [OK, OK]

    def test_several_files(self, config, train_file):
        config.data.train_files = [str(train_file), str(train_file)]
        assert levels(data_files.check_data(config)) == [OK, OK, OK]

    def test_missing_file(self, config):
        config.data.train_files = "/no/such/file.parquet"
        assert "does not exist" in only(data_files.check_data(config), FAIL).found

    def test_not_parquet(self, config, train_file):
        train_file.write_text("hello")
        assert levels(data_files.check_data(config)) == [FAIL, OK]

    def test_empty_parquet(self, config, train_file):
        pq.write_table(SCHEMA.empty_table(), train_file)
        assert "no rows" in only(data_files.check_data(config), FAIL).found

    @pytest.mark.parametrize("column", ["prompt", "reward_model", "data_source"])
    def test_missing_column(self, config, tmp_path, column):
        content = [{key: value for key, value in row.items() if key != column} for row in rows(16)]
        assert f"lacks {column}" in only(self.check(config, content, tmp_path), FAIL).found
        prompts.check_prompts(config)  # does not stumble over it

    def test_stock_verl_needs_no_query_id(self, config, tmp_path):
        config.trainer.v1.trainer_mode = "sync"
        content = [{key: value for key, value in row.items() if key != "query_id"} for row in rows(16)]
        assert levels(self.check(config, content, tmp_path)) == [OK, OK]

    def test_missing_extra_info_is_a_warning(self, config, tmp_path):
        content = [{key: value for key, value in row.items() if key != "extra_info"} for row in rows(16)]
        assert levels(self.check(config, content, tmp_path)) == [WARN, OK]

    @pytest.mark.parametrize("row", [0, 777, 1999])
    def test_any_row_is_named_with_its_column_and_those_that_follow_are_counted(self, config, tmp_path, row):
        content = rows(2000)
        for bad in {row, 1998}:
            content[bad]["reward_model"]["ground_truth"] = None
        finding = only(self.check(config, content, tmp_path), FAIL)
        more = {0: " (1 further row)", 777: " (1 further row)", 1999: " (1 further row)"}[row]
        first = min(row, 1998)
        assert finding.found == f"changed.json, row {first}: reward_model.ground_truth is None{more}"

    def test_several_accepted_answers(self, config, tmp_path):
        content = rows(16)
        for row in content:
            row["reward_model"]["ground_truth"] = ["1", "1.0"]
        assert levels(self.check(config, content, tmp_path)) == [OK, OK]
        content[3]["reward_model"]["ground_truth"] = "4"  # verl's dataset would make it the number 4
        assert "row 3: reward_model.ground_truth is a text" in only(self.check(config, content, tmp_path), FAIL).found

    @pytest.mark.parametrize(
        "reward, level",
        [
            ("{}", FAIL),
            ("{custom_reward_function: {path: mine.py}}", OK),
            ("{reward_manager: {source: register, name: naive}}", OK),
        ],
    )
    def test_a_group_of_values_is_for_a_reward_function(self, config, tmp_path, reward, level):
        config.merge_with({"reward": OmegaConf.create(reward)})
        content = rows(16)
        for row in content:
            row["reward_model"]["ground_truth"] = {"target": ["1", "one"]}
        finding = self.check(config, content, tmp_path)[0]
        assert finding.level == level
        assert level == OK or "reward_model.ground_truth is {'target': " in finding.found

    def test_without_query_id_ids_are_made(self, config, tmp_path):
        content = [{key: value for key, value in row.items() if key != "query_id"} for row in rows(16)]
        findings = self.check(config, content, tmp_path)
        assert levels(findings) == [OK] * 3 and "ids are made from prompt and answer" in findings[1].found

    def test_a_problem_may_occur_twice(self, config, tmp_path):
        assert levels(self.check(config, rows(16) + rows(4), tmp_path)) == [OK, OK]

    @pytest.mark.parametrize("in_two_files", [False, True])
    def test_an_id_of_two_problems(self, config, tmp_path, in_two_files):
        content = rows(32)
        content[20]["query_id"] = content[3]["query_id"]
        parts = [content[:16], content[16:]] if in_two_files else [content]
        config.data.train_files = [as_json(tmp_path / f"{n}.json", part) for n, part in enumerate(parts)]
        finding = only(data_files.check_data(config), FAIL)
        assert "stands for different prompts" in finding.found and "What is 3 + 1?" in finding.found
        assert "an id of its own" in finding.advice

    def test_fewer_rows_than_a_batch(self, config, tmp_path):
        assert "train_batch_size=16" in only(self.check(config, rows(15), tmp_path), FAIL).found
        config.data.train_max_samples = 8
        assert "8 training rows" in only(self.check(config, rows(32), tmp_path), FAIL).found

    def test_files_whose_types_cannot_be_put_together(self, config, tmp_path, train_file):
        table = pq.read_table(train_file)
        other = table.set_column(table.column_names.index("query_id"), "query_id", pa.array(range(len(table))))
        pq.write_table(other, tmp_path / "other.parquet")
        config.data.train_files = [str(train_file), str(tmp_path / "other.parquet")]
        assert "query_id" in only(data_files.check_data(config), FAIL).found

    def test_a_column_that_verls_dataset_cannot_hold(self, config, train_file):
        table = pq.read_table(train_file)
        maps = pa.array([[("a", 1)]] * len(table), pa.map_(pa.string(), pa.int64()))
        pq.write_table(table.append_column("extra", maps), train_file)
        assert "map<string, int64" in only(data_files.check_data(config), FAIL).found


class TestPrompts:
    def test_rendered_and_counted(self, config):
        train, reflection, val = prompts.check_prompts(config)
        assert train.found.startswith("train.parquet: 32 rendered, at most ")
        assert "for the past attempt" in reflection.found
        assert val.found.startswith("val.parquet: 4 rendered")

    def test_all_too_long(self, config):
        config.data.max_prompt_length = 4
        assert levels(prompts.check_prompts(config)) == [FAIL, WARN, FAIL]

    @pytest.mark.parametrize("filtered, advice", [(True, "left out"), (False, "from the left")])
    def test_one_too_long(self, config, tmp_path, filtered, advice):
        content = rows(16)
        content[3]["prompt"][0]["content"] += " really" * 600
        config.data.train_files = as_json(tmp_path / "long.json", content)
        config.data.filter_overlong_prompts = filtered
        finding = only(prompts.check_prompts(config), WARN)
        assert finding.found.endswith("1 over")
        assert advice in finding.advice

    def test_no_room_for_a_past_attempt(self, config):
        config.algorithm.r3.reflection.template += " and then" * 400
        assert "reflection leaves" in only(prompts.check_prompts(config), WARN).found
        config.algorithm.r3.reflection.enable = False
        assert levels(prompts.check_prompts(config)) == [OK, OK]

    @pytest.mark.parametrize("row", [0, 1001])
    def test_template_refuses_the_roles(self, config, tmp_path, row):
        content = rows(2000)
        content[row]["prompt"][0]["role"] = "wizard"
        config.data.train_files = as_json(tmp_path / "roles.json", content)
        assert "wizard" in only(prompts.check_prompts(config), FAIL).found


class TestWorlds:
    @pytest.fixture
    def sessions(self):
        return compose_config(base_overrides("embedded", "hgpo"))

    def test_rows_that_are_still_to_be_made_need_textworld_and_others_what_they_name(self, sessions, tmp_path):
        assert only(data_files.check_worlds(sessions), OK).found == "textworld"
        sessions.data.train_files = as_json(tmp_path / "train.json", [{"task": {"world": "nowhere:Door"}}])
        found = only(data_files.check_worlds(sessions), FAIL)
        assert found.found == "task.world nowhere:Door: No module named 'nowhere'"

    def test_without_textworld_the_way_to_it_is_told(self, sessions, monkeypatch):
        monkeypatch.setitem(sys.modules, "textworld", None)
        monkeypatch.delitem(sys.modules, "recipe.hgpo.environments.textworld_games", raising=False)
        assert "install.sh --games" in only(data_files.check_worlds(sessions), FAIL).advice

    def test_answers_of_one_turn_have_no_world(self):
        assert data_files.check_worlds(compose_config(base_overrides("embedded", "grpo"))) == []
