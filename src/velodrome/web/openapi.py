"""The description of a model server's interface, in OpenAPI 3.1."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from velodrome.serving.responses import LONGEST_TEXT, MOST_WORDS

_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}
_SENTENCES = {
    400: "The request is damaged.", 401: "A token is needed, and was not sent.",
    403: "The request comes from a page of another site.", 404: "There is no such model or test picture.",
    405: "The method is not possible here.", 408: "Sending or answering took too long.",
    409: "The files of the model are damaged, or it could not be exported.",
    413: "The request, the picture or the text is too large.", 415: "The file is no picture of a known format.",
    421: "The server is not called by that name.", 422: "A value is missing or cannot be used.",
    503: "The model is still being exported, or too many requests are waiting.",
}
_PREDICTION = {
    "type": "object",
    "properties": {
        "class": {"type": "string"}, "probability": {"type": "number", "minimum": 0, "maximum": 1},
        "name": {"type": "string", "description": "what is predicted, where it is a number"},
        "value": {"type": "number"},
    },
}


def description(names: Sequence[str]) -> dict[str, Any]:
    """The whole interface; `names` are those of the models."""
    model = {
        "name": "model", "in": "query", "required": False, "schema": {"type": "string", "enum": list(names)},
        "description": "which model answers; the first one by default",
    }
    top = {
        "name": "top", "in": "query", "required": False, "description": "list so many classes",
        "schema": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 10},
    }
    index = {"name": "index", "in": "query", "required": False,
             "schema": {"type": "integer", "minimum": 0, "maximum": 1000000, "default": 0}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Models trained with Velodrome", "version": version("velodrome")},
        "paths": {
            "/api/predict": {"post": _operation(
                "predict", "Classes with probabilities, numbers, or the next words", [model, top], _inputs(),
                {"type": "object", "required": ["model", "predictions", "milliseconds"], "properties": {
                    "model": {"type": "string"}, "predictions": {"type": "array", "items": _PREDICTION},
                    "milliseconds": {"type": "number"},
                    "unknown": {"type": "array", "items": {"type": "string"},
                                "description": "words of the text that the model does not know"},
                }},
            )},
            "/api/explain": {"post": _operation(
                "explain", "Where a picture speaks for the answer", [model], _pictures(),
                {"type": "object", "required": ["model", "class", "probability", "map"], "properties": {
                    "model": {"type": "string"}, "class": {"type": "string"}, "probability": {"type": "number"},
                    "map": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                    "milliseconds": {"type": "number"},
                }},
            )},
            "/api/generate": {"post": _operation(
                "generate", "Words that continue a text", [], {"application/json": {"schema": {
                    "type": "object", "required": ["text"], "properties": {
                        "model": {"type": "string", "enum": list(names)},
                        "text": {"type": "string", "maxLength": LONGEST_TEXT},
                        "words": {"type": "integer", "minimum": 1, "maximum": MOST_WORDS},
                        "temperature": {"type": "number", "minimum": 0, "maximum": 10},
                        "seed": {"type": "integer", "minimum": 0, "maximum": 2**53},
                    },
                }}},
                {"type": "object", "required": ["model", "words"], "properties": {
                    "model": {"type": "string"}, "words": {"type": "array", "items": {"type": "string"}},
                    "milliseconds": {"type": "number"},
                }},
            )},
            "/api/models": {"get": _operation(
                "models", "The models of this server", [], None,
                {"type": "object", "required": ["models"], "properties": {
                    "models": {"type": "array", "items": {"type": "object", "required": ["name", "status"]}},
                }},
            )},
            "/api/example": {"get": _operation(
                "example", "A picture of the test set", [model, index], None, None,
            )},
        },
    }


def _operation(
    name: str, summary: str, parameters: list[dict[str, Any]], body: dict[str, Any] | None,
    answer: dict[str, Any] | None,
) -> dict[str, Any]:
    content = {"application/json": {"schema": answer}} if answer else {"image/png": {}}
    refusals = {
        str(status): {"description": text, "content": {"application/json": {"schema": _ERROR}, "text/plain": {}}}
        for status, text in _SENTENCES.items()
    }
    operation: dict[str, Any] = {
        "operationId": name, "summary": summary, "parameters": parameters,
        "responses": {"200": {"description": summary, "content": content}, **refusals},
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _pictures() -> dict[str, Any]:
    return {
        "multipart/form-data": {"schema": {
            "type": "object", "required": ["file"],
            "properties": {"file": {"type": "string", "contentMediaType": "application/octet-stream"}},
        }},
        "image/png": {}, "image/jpeg": {},
    }


def _inputs() -> dict[str, Any]:
    return {**_pictures(), "application/json": {"schema": {
        "type": "object", "description": 'cells of a row by column, arrays by input, or {"text": "words so far"}',
    }}}
