"""What a Keras model brings for Keras' own training loop, which is not the one that trains it here."""

from __future__ import annotations

from typing import Any

import keras

#: Settings of `compile` that the job decides instead.
_SETTINGS = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics")
#: Methods that Keras' loop calls.
_METHODS = ("train_step", "test_step", "compute_loss", "compute_metrics")


def ignored_settings(name: str, model: keras.Model, used: str = "cross-entropy and accuracy") -> tuple[str, ...]:
    """Warnings, as sentences, about what the model says of its training and the job does not heed."""
    settings = [setting for setting in _SETTINGS if _compiled_with(model).get(setting)]
    methods = [method for method in _METHODS if getattr(type(model), method) is not getattr(keras.Model, method)]
    notes = []
    if settings:
        notes.append(
            f"model {name!r} was compiled, and its {_listed(settings)} {_verb(settings)} ignored: the job's optimizer "
            f"and learning rate, {used} are used"
        )
    if methods:
        notes.append(
            f"model {name!r} has its own {_listed(methods)}, which {_verb(methods)} ignored: {used} are used"
        )
    return tuple(notes)


def _compiled_with(model: keras.Model) -> dict[str, Any]:
    if not model.compiled:
        return {}
    try:
        config: dict[str, Any] = model.get_compile_config()
    except Exception:  # a loss of the user's own need not be serialisable
        return {"optimizer": model.optimizer, "loss": model.loss, "metrics": model.metrics}
    return config


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _verb(names: list[str]) -> str:
    return "are" if len(names) > 1 else "is"
