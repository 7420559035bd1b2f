"""A strict parser of JSON bodies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

import msgspec
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser


class StrictJsonParser(BaseParser):
    """Standard JSON: UTF-8, no NaN, no lone surrogates, bounded nesting."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[bytes],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the value of the body. Raises ParseError with the place of an error."""
        try:
            return msgspec.json.decode(stream.read())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ParseError(f"the body is not JSON: {error}") from error
        except RecursionError as error:
            raise ParseError("the body is nested too deeply") from error
