"""Static files as complete responses."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.responders import StaticFile


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """WhiteNoise for ASGI: its streamed responses are synchronous, and Django would warn about each."""

    @staticmethod
    def serve(static_file: StaticFile, request: HttpRequest) -> HttpResponse:
        """Return the file's bytes in one response; our files are small."""
        found = static_file.get_response(request.method, request.META)
        body = b"" if found.file is None else found.file.read()
        response = HttpResponse(body, status=int(found.status))
        del response["content-type"]
        for key, value in found.headers:
            response[key] = value
        return response
