"""`r3 study`: arms that differ where they mean to, and the worlds they are trained in."""

import functools

import pytest
from omegaconf import OmegaConf

from r3_ext.run import command as launch
from r3_ext.settings.compose import compose_config
from r3_ext.study import arms, cells, command


@functools.cache
def r3_settings(overrides):
    """algorithm.r3 in a cell of the embedded profile with these overrides."""
    config = compose_config(["+profile=embedded", "+method=r3", *arms.EMBEDDED, *overrides])
    return OmegaConf.to_container(config, resolve=True)["algorithm"]["r3"]


@pytest.mark.parametrize(
    ("name", "than"),
    [
        *((name, "r3") for name in ("whole", "contrast", "next_epoch", "more")),
        ("both", "whole"),
        ("failures", "whole"),
    ],
)
def test_a_setting_is_tried_alone(name, than):
    full, tried = (r3_settings(arms.ARMS[one].overrides) for one in (than, name))
    changed = [
        (part, key) for part in arms.MECHANISMS.values() for key in full[part] if full[part][key] != tried[part][key]
    ]
    assert len(changed) == 1


def test_arms_differ_from_the_full_method_in_their_mechanism_alone():
    def flat(overrides):
        r3 = r3_settings(overrides)
        return {**{name: r3[name]["enable"] for name in arms.MECHANISMS.values()}, **r3["replay"]}

    full = flat(arms.ARMS["r3"].overrides)
    assert all(full[name] for name in arms.MECHANISMS.values())
    for name, key in arms.MECHANISMS.items():
        others = [other for other in arms.MECHANISMS.values() if other != key]
        only, without = flat(arms.ARMS[name].overrides), flat(arms.ARMS[f"no_{name}"].overrides)
        assert only[key] and not any(only[other] for other in others)
        assert not without[key] and all(without[other] for other in others)


def test_an_arm_that_has_ended_is_known_and_not_trained(tmp_path):
    assert arms.title("wrong_content") == "+CCR with answers to other problems"
    args = command.parse(["--arms", "wrong_content", "--seeds", "0", "--out", str(tmp_path)])
    with pytest.raises(ValueError, match="has ended: it can be trained at commit cde174c only"):
        cells.cell_command(args, "embedded", "wrong_content", 0)


def test_the_names_of_the_arms_stand_apart_from_what_is_said_of_them(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.parse(["--help"])
    told = capsys.readouterr().out
    for arm in arms.ARMS:
        assert f"  {arm} " in told and cells.describe(arm, 0, tmp_path).startswith(f"{arm} ")


def test_dapo_updates_as_often_as_the_others_on_the_embedded_profile_only():
    args = command.parse(["--tokens", "200"])

    def batches(arm: str, profile: str) -> list[str]:
        return [part for part in cells.cell_command(args, profile, arm, 0) if "batch_size" in part]

    assert batches("dapo", "embedded") == ["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    assert batches("r3", "embedded") == batches("dapo", "gpu_8x80gb") == []


def test_a_seed_is_a_world_where_problems_are_generated(monkeypatch):
    def world(profile, *options):
        told = cells.cell_command(command.parse([*options]), profile, "r3", 7)
        return told[told.index("--world") + 1] if "--world" in told else None

    for name in ("DATA", "MODEL"):
        monkeypatch.delenv(name, raising=False)
    assert world("embedded") == "seed=7" and world("gpu_8x80gb") is None
    assert world("embedded", "--world", "mistaken=0") == "mistaken=0,seed=7"
    assert world("embedded", "actor_rollout_ref.model.path=/m") is None
    monkeypatch.setenv("MODEL", "/m")
    assert world("embedded") is None


def test_worlds_with_other_properties_are_another_study():
    plain, other = command.parse([]), command.parse(["--world", "mistaken=0"])
    assert command.plan_of(other, "embedded") == command.plan_of(plain, "embedded") | {"world": "mistaken=0"}


@pytest.mark.parametrize("profile,data", [("gpu_8x80gb", None), ("embedded", "train.parquet")])
def test_a_world_is_refused_where_nothing_is_generated(profile, data, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("DATA", raising=False)
    if data:
        monkeypatch.setenv("DATA", data)
    for main, folder in ((launch.main, "--outputs"), (command.main, "--out")):
        assert main(["--world", "stuck=0", "--profile", profile, folder, str(tmp_path)]) == 2
        assert "error: --world concerns the problems" in capsys.readouterr().out and not list(tmp_path.iterdir())
