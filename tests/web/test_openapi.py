"""A model server asked everything that its description allows, and much that it does not, over a real connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from start_command import served
from tiny_models import brightness, counting, line
from velodrome.web.model_api import ROUTES

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A classifier of pictures, a regression and a language model."""
    runs = tmp_path_factory.mktemp("described")
    for make in (brightness, line, counting):
        make(runs)
    with served(runs, "brightness", "line", "counting") as address:
        yield address


@pytest.fixture(scope="module")
def description(server: str) -> Any:
    return schemathesis.openapi.from_url(f"{server}/openapi.json")


@pytest.mark.quick("models-*", "predict-*", "explain-negative", "generate-negative", "example-positive")
@pytest.mark.parametrize(
    ("operation", "mode"),
    [
        ("models", GenerationMode.POSITIVE),  # it takes nothing that could be wrong
        *((operation, mode) for operation in ("predict", "explain", "generate", "example") for mode in GenerationMode),
    ],
    ids=lambda value: getattr(value, "value", value),
)
def test_every_answer_is_one_of_the_description(description: Any, operation: str, mode: GenerationMode) -> None:
    @given(case=description.find_operation_by_id(operation).as_strategy(generation_mode=mode))
    @settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def ask(case: Any) -> None:
        answer = case.call(timeout=60)
        checks = [
            not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
            unsupported_method,
        ]
        if answer.status_code != 413:  # a refusal, which that check does not know
            checks.append(negative_data_rejection)
        case.validate_response(answer, checks=checks)

    ask()


def test_the_description_has_every_address_of_the_interface(description: Any) -> None:
    assert {one.ok().path for one in description.get_all_operations()} == {
        route.path for route in ROUTES if route.path.startswith("/api/")
    }
