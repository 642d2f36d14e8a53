"""What `diversed train --help` says of its defaults is what a recipe without settings has."""

import dataclasses
import inspect
import typing

from diversed_mlx.cli.train import train
from diversed_mlx.training.recipe import Recipe


def test_the_help_names_the_recipe_s_defaults():
    annotations = typing.get_type_hints(train, include_extras=True)
    parameters = inspect.signature(train).parameters
    for field in dataclasses.fields(Recipe):
        assert parameters[field.name].default is None
        shown = typing.get_args(annotations[field.name])[-1].show_default
        if isinstance(field.default, int | float):
            assert float(shown.split(",")[0]) == field.default, field.name
        else:
            assert shown == (
                field.default
                or {
                    "learning_rate": "by the size of the hidden states",
                    "max_quality_loss": "λ is fixed",
                    "max_tokens": "the task's",
                }[field.name]
            )
