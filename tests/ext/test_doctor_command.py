"""`r3 doctor` as a whole: what it says of the settings, how it reports, and the command."""

import json
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from r3_ext import cli
from r3_ext.doctor import command, entry, installation, machine, settings, storage
from r3_ext.doctor.finding import FAIL, OK, WARN, Finding
from r3_ext.doctor.network import check_network
from r3_ext.settings.compose import base_overrides, choices, compose_config
from recipe.common.config import value_rules
from tests.ext.doctored import as_json, levels, only, rows

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("plain_environment")]


def test_everything_in_place_passes_every_check(config, monkeypatch):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    # What this machine has installed and free is not the subject.
    left_out = (installation.check_packages, machine.check_memory, machine.check_shared_memory, storage.check_disk)
    left_out += (check_network,)
    monkeypatch.setattr(command, "CHECKS", [check for check in command.CHECKS if check not in left_out])
    findings = command.diagnose(config)
    assert [finding for finding in findings if finding.level != OK] == []
    assert {finding.check for finding in findings} >= {"config", "model", "tokenizer", "data", "prompts", "cores"}


def test_every_finding_that_is_not_ok_says_what_to_do(composed):
    findings = command.diagnose(composed["embedded"])
    assert all(bool(finding.advice) == (finding.level != OK) for finding in findings)
    # Nothing names a model or data: `r3 run` prepares them, so this is no failure.
    assert levels([f for f in findings if f.check in ("model", "data")]) == [WARN, WARN, WARN]


class TestConfig:
    def test_setting_of_the_recipe(self, config):
        config.algorithm.r3.replay.k = 0
        assert only(settings.check_config(config), FAIL).found.startswith("algorithm.r3.replay.k must be at least 1")

    def test_setting_of_verl(self, config):
        config.actor_rollout_ref.actor.loss_agg_mode = "mean"
        assert "loss_agg_mode" in only(settings.check_config(config), FAIL).found

    def test_recipe_rules_do_not_hold_for_stock_verl(self, config):
        config.trainer.v1.trainer_mode, config.algorithm.adv_estimator = "sync", "grpo"
        assert levels(settings.check_config(config)) == [OK]

    @pytest.mark.parametrize("method", ["r3", "grpo"])
    @pytest.mark.parametrize(
        ("key", "value", "told"),
        [
            ("actor_rollout_ref.actor.policy_loss.loss_mode", "gsppo", "gsppo"),
            (
                "reward.reward_manager.name",
                "naive",
                "naive is a manager of verl's, and reward.reward_manager.source=importlib",
            ),
            ("reward.reward_manager", {"source": "register", "name": "nosuch"}, "nobody has registered nosuch"),
            ("reward.reward_manager.source", "registre", "must be register or importlib, got 'registre'"),
            ("reward.sandbox_fusion.url", "http://localhost", "http://localhost would not be asked"),
        ],
    )
    def test_names_that_nobody_knows_and_what_nobody_asks(self, config, method, key, value, told):
        if method == "grpo":
            config.trainer.v1.trainer_mode, config.algorithm.adv_estimator = "baseline", "grpo"
        OmegaConf.update(config, key, value)
        assert told in only(settings.check_config(config), FAIL).found

    def test_names_that_modules_of_the_users_own_may_bring_are_left_to_the_workers(self, config, tmp_path):
        function = tmp_path / "mine.py"
        function.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info): return 0.0\n")
        config.reward.reward_manager = {**config.reward.reward_manager, "source": "register", "name": "mine"}
        assert "nobody has registered mine" in only(settings.check_config(config), FAIL).found
        config.reward.custom_reward_function.path = str(function)
        assert levels(settings.check_config(config)) == [OK], "the file may register it"
        config.reward.custom_reward_function.path = None
        config.actor_rollout_ref.actor.policy_loss.loss_mode = "mine"
        environment = config.ray_kwargs.ray_init.runtime_env.env_vars
        environment.VERL_USE_EXTERNAL_MODULES = f"{environment.VERL_USE_EXTERNAL_MODULES},mine"
        assert levels(settings.check_config(config)) == [OK]

    def test_reward_settings_are_those_that_the_workers_will_build(self, config):
        config.reward.reward_kwargs.grader_timeout_s = -1
        finding = only(settings.check_config(config), FAIL)
        assert finding.found == "reward.reward_kwargs.grader_timeout_s must be > 0, got -1"
        # Another manager's settings are its own.
        config.reward.reward_manager.source, config.reward.reward_manager.name = "register", "dapo"
        assert FAIL not in levels(settings.check_config(config))

    @pytest.mark.parametrize(
        "override, found",
        [
            ("trainer.total_epochs=abc", "trainer.total_epochs must be a whole number of at least 1, got 'abc'"),
            ("trainer.total_epochs=0", "trainer.total_epochs must be a whole number of at least 1, got 0"),
            ("data.train_batch_size=2.5", "data.train_batch_size must be a whole number of at least 1, got 2.5"),
            ("trainer.n_gpus_per_node=null", "trainer.n_gpus_per_node must be a whole number of at least 1, got None"),
            ("trainer.save_freq=often", "trainer.save_freq must be a whole number (-1: never, or all), got 'often'"),
            ("trainer.total_training_steps=-4", "at least 1 or null, got -4"),
            ("data.shuffle=maybe", "data.shuffle must be true or false, got 'maybe'"),
            ("actor_rollout_ref.actor.optim.lr=fast", "actor_rollout_ref.actor.optim.lr must be a number > 0"),
            ("actor_rollout_ref.actor.entropy_coeff=[1]", "actor.entropy_coeff must be a number, got [1]"),
            ("actor_rollout_ref.rollout.top_p=1.5", "actor_rollout_ref.rollout.top_p must be in (0, 1], got 1.5"),
            ("trainer.experiment_name=${nothing}", "nothing"),
            ("trainer.experiment_name=5", "trainer.experiment_name must be a text or a list, got 5"),
            ("trainer.v1=null", "trainer.v1 must be a section with settings, got None"),
            ("reward.reward_manager=null", "reward.reward_manager must be a section with settings"),
            ("algorithm.r3.history=null", "algorithm.r3.history must be a section with settings"),
            ("++actor_rollout_ref=null", "actor_rollout_ref must be a section with settings"),
            ("actor_rollout_ref.rollout=5", "actor_rollout_ref.rollout must be a section with settings, got 5"),
            ("actor_rollout_ref.model=null", "actor_rollout_ref.model must be a section with settings"),
            ("~data", "more must be there, and an override has deleted it"),
            ("~actor_rollout_ref.rollout.n", "actor_rollout_ref.rollout.n must be there, and an override has deleted"),
            ("data.train_files=5", "data.train_files must be a text or a list of texts, got 5"),
            ("data.val_files=[a,null]", "data.val_files must be a text or a list of texts, got ['a', None]"),
            ("data.prompt_key=5", "data.prompt_key must be a text"),
            ("trainer.logger=5", "trainer.logger must be a text or a list of texts, got 5"),
            ("trainer.resume_mode=nope", "trainer.resume_mode must be one of auto, disable, resume_path, got 'nope'"),
            *((f"{key}='~nosuchuser/a'", f"{key} must be a path that can be used (there") for key in settings.PATHS),
            *((f"{key}={'a' * 300}", f"{key} must be paths that can be used (File") for key in value_rules.FILES),
            *((f"{key}={value}", f"{key} must be a text") for key in settings.PATHS for value in ("null", "5", "[a]")),
        ],
    )
    def test_values_of_the_wrong_kind_are_the_only_findings(self, override, found):
        method = next((name for name in ("hgpo", "rrl") if f"algorithm.{name}." in override), "r3")
        findings = command.diagnose(compose_config([*base_overrides("embedded", method), override]))
        assert {(finding.level, finding.check) for finding in findings} == {(FAIL, "config")}
        assert sum(found in finding.found for finding in findings) == 1

    def test_no_value_of_ours_is_of_the_wrong_kind(self):
        """Each profile and each method; neither changes what the other sets."""
        profiles, methods = choices("profile"), choices("method")
        pairs = [(profile, "r3") for profile in profiles] + [("embedded", method) for method in methods]
        for profile, method in pairs:
            config = compose_config([f"+profile={profile}", f"+method={method}"])
            assert settings.wrong_values(config) == [], (profile, method)

    def test_verls_own_trainer_takes_the_settings_of_the_baselines(self):
        for method in ("grpo", "dapo"):
            config = compose_config(["+profile=embedded", f"+method={method}", "trainer.v1.trainer_mode=sync"])
            assert settings.wrong_values(config) == []

    def test_what_verl_takes_is_let_through(self):
        """Other engines have other settings; null where verl asks for it; texts where there are lists, and lists."""
        for overrides in (
            ["model_engine=megatron"],
            ["data.train_files=[a,b]", "trainer.logger=console", "trainer.resume_mode=resume_path"],
            ["reward.reward_kwargs=null", "algorithm.r3.replay.reflected_unless=null", "trainer.logger=[]"],
            ['algorithm.rollout_correction.rollout_is_threshold="0.5_5.0"'],
            ["skip.rollout_tq.steps=[1,2]", "skip.rollout_tq.enable=True", "+trainer.mine=5", "data.seed=null"],
        ):
            assert settings.wrong_values(compose_config(overrides)) == [], overrides

    def test_lengths(self, config):
        config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu = 570
        told = [finding.found for finding in settings.check_config(config)]
        assert len(told) == 2 and all("576 tokens" in one for one in told), "of the update and of the log-probs"
        config.actor_rollout_ref.rollout.max_model_len = 570
        assert levels(settings.check_config(config)) == [FAIL, FAIL, FAIL]
        config.actor_rollout_ref.rollout.max_model_len = None
        config.actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size = 2
        told = [finding.found for finding in settings.check_config(config)]
        assert not any("max_token_len_per_gpu" in one for one in told), "two GPUs share a row of 576 tokens"


class TestReport:
    FINDINGS = [
        Finding(OK, "python", "Python 3.11"),
        Finding(WARN, "memory", "6 of 16 GiB free, about 9 needed", "close other programs"),
        Finding(FAIL, "data", "a [long] path " * 20, "prepare the data again " * 10),
    ]

    @pytest.mark.parametrize("columns", ["80", "200"])
    def test_table_fits_the_terminal(self, capsys, monkeypatch, columns):
        monkeypatch.setenv("COLUMNS", columns)
        assert command.report(self.FINDINGS) is False
        output = capsys.readouterr().out
        assert max(map(len, output.splitlines())) <= 100
        assert "[long]" in output
        assert output.splitlines()[-1] == "1 failed, 1 warning, 1 ok"

    def test_a_warning_passes(self, capsys):
        assert command.report(self.FINDINGS[:2]) is True

    def test_json(self, capsys):
        assert command.report_json(self.FINDINGS) is False
        read = json.loads(capsys.readouterr().out)
        assert (read["ok"], len(read["findings"])) == (False, 3)
        assert read["findings"][1] == {
            "level": "warn",
            "check": "memory",
            "found": "6 of 16 GiB free, about 9 needed",
            "advice": "close other programs",
        }


class TestCommand:
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch):
        monkeypatch.setenv("VERL_PLATFORM", "")  # restored afterwards: the command sets it

    def test_configuration_that_does_not_compose(self, capsys):
        assert command.main(["--profile", "embedded", "--json", "algorithm.r3.repaly.k=2"]) == 1
        (finding,) = json.loads(capsys.readouterr().out)["findings"]
        assert finding["check"] == "config" and "repaly" in finding["found"]

    @pytest.mark.parametrize("argv", [["--profile", "nope"], ["--profile", "embedded", "--method", "nope"]])
    def test_an_unknown_name_is_told_with_the_known_ones(self, capsys, argv):
        assert command.main([*argv, "--json"]) == 1
        (finding,) = json.loads(capsys.readouterr().out)["findings"]
        assert "must be one of" in finding["found"] and "got 'nope'" in finding["found"]

    @pytest.mark.parametrize("variable", ["DATA", "VAL_DATA"])
    def test_the_files_that_a_run_would_take_are_checked(self, capsys, monkeypatch, tmp_path, variable):
        content = rows(300)
        content[250]["data_source"] = None
        monkeypatch.setenv(variable, as_json(tmp_path / "mine.json", content))
        argv = ["--profile", "embedded", "--json", "--cache", str(tmp_path / "cache")]
        assert command.main(argv) == 1
        failed = [f["found"] for f in json.loads(capsys.readouterr().out)["findings"] if f["level"] == FAIL]
        assert any("mine.json, row 250: data_source is None" in found for found in failed)

    def test_the_model_that_a_run_would_take_is_checked(self, capsys, monkeypatch, tmp_path, model):
        argv = ["--profile", "embedded", "--json", "--cache", str(tmp_path / "cache")]
        (model / "config.json").unlink()
        for path, found in ((model, "has no config.json"), (tmp_path / "none", "no such folder")):
            monkeypatch.setenv("MODEL", str(path))
            assert command.main(argv) == 1
            findings = json.loads(capsys.readouterr().out)["findings"]
            assert any(f["level"] == FAIL and found in f["found"] for f in findings)

    def test_overrides_reach_the_checks(self, capsys, monkeypatch):
        monkeypatch.setattr(command, "CHECKS", [settings.check_config])
        assert command.main(["data.train_batch_size=8", "--profile", "embedded", "--json"]) == 0
        assert "8 prompts" in json.loads(capsys.readouterr().out)["findings"][0]["found"]
        assert command.main(["algorithm.r3.replay.k=0", "--profile", "embedded"]) == 1

    def test_it_says_so_without_any_of_them(self):
        code = (
            "import sys\n"
            "sys.modules |= dict.fromkeys(('hydra', 'omegaconf', 'packaging', 'rich', 'ray', 'torch', 'verl'))\n"
            "from r3_ext.doctor import entry\n"
            "entry.installed_version = lambda name: None\n"
            "sys.exit(entry.main([]))\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, "") and "missing: packaging, hydra-core" in done.stdout

    def test_packages_missing_that_the_doctor_itself_needs(self, capsys, monkeypatch):
        monkeypatch.setattr(entry, "installed_version", lambda name: None)
        assert entry.main([]) == 1
        assert "missing: packaging, hydra-core" in capsys.readouterr().out

    def test_command_line_is_dispatched_lazily(self):
        code = "import sys, r3_ext.cli; print([m for m in ('torch', 'hydra', 'rich', 'verl') if m in sys.modules])"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert result.stdout.strip() == "[]"

    def test_arguments_of_a_subcommand_are_left_to_it(self, monkeypatch):
        monkeypatch.setattr(command, "main", lambda argv: len(argv))
        assert cli.main(["doctor", "--json", "+profile=embedded", "~data.seed"]) == 3

    @pytest.mark.parametrize("argv", [[], ["walk"]])
    def test_unknown_or_no_subcommand(self, argv, capsys):
        with pytest.raises(SystemExit):
            cli.main(argv)
        assert "doctor" in capsys.readouterr().err
