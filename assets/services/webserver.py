"""`dagster dev` with a web server that answers only requests from its own pages on this machine.

Dagster has no login and cannot restrict who sends requests. A page of any site that is open in a browser could reach it
by a host name that resolves to 127.0.0.1 (DNS rebinding), or send it a form. So every request must be addressed to this
machine, and a request that may change something must come from Dagster's own pages.

`python -m assets.services.webserver dev …` is `dagster dev …`, with this module in place of `dagster_webserver`.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.parse
import warnings
from collections.abc import Sequence
from typing import Any

LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
READING = frozenset({"GET", "HEAD"})
ELSEWHERE = frozenset({"cross-site", "same-site"})  # values of Sec-Fetch-Site for pages of other servers
# The classes are those of Dagster 1.13.27, without their hashes; where they are called otherwise, nothing changes.
STYLE = b"""<style>
[class*="AssetNodeOverview_statusGrid"] [class*="Box_flex_"] { flex-wrap: wrap; max-width: 100%; }
[class*="AssetNodeOverview_statusGrid"] [class*="baseTag"] span { white-space: normal; overflow-wrap: anywhere; }
[class*="AssetNodeOverview_statusGrid"] [class*="baseTag"] { height: auto; }
</style></head>"""


class LocalOnly:
    """An ASGI application that passes requests on to `app`, except those that `refusal` refuses."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass the request on, or refuse it: with status 403, or by closing a websocket before it is accepted."""
        said = refusal(scope) if scope["type"] in ("http", "websocket") else ""
        if not said:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": said})
        else:
            head = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 403, "headers": head})
            await send({"type": "http.response.body", "body": f"{said}\n".encode()})


def refusal(scope: Any) -> str:
    """Return why a web request is refused; empty if it is answered. `scope` is the request's ASGI scope."""
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    hosts = headers.get("host", [])
    if len(hosts) != 1 or _name_of(hosts[0]) not in LOCAL_NAMES:
        return "refused: this server answers to localhost and 127.0.0.1 alone"
    if scope["type"] == "http" and scope["method"] in READING:
        # Links and images on any site can send such a request. A page shows only to the person, but GraphQL could act.
        is_page = "graphql" not in scope["path"].lower() or "text/html" in " ".join(headers.get("accept", []))
        return "" if is_page else "refused: GraphQL is asked by POST"
    own = {f"{scheme}://{hosts[0]}".lower() for scheme in ("http", "https")}
    if any(origin.lower() not in own for origin in headers.get("origin", [])):
        return "refused: the request comes from a page of another site"
    if ELSEWHERE & set(headers.get("sec-fetch-site", [])):
        return "refused: the request comes from a page of another site"
    return ""


def _name_of(host: str) -> str:
    """The host name or address in a Host header, without the port; empty if the header is invalid."""
    try:
        parts = urllib.parse.urlsplit(f"//{host}")
        return (parts.hostname or "") if parts.netloc == host and "@" not in host else ""
    except ValueError:
        return ""


def main(arguments: Sequence[str]) -> None:
    """Run `dagster dev`, or the web server that it starts."""
    if arguments[:1] == ["dev"]:
        _run_dev()
    else:
        _run_web_server()


def _run_dev() -> None:
    from dagster_shared.utils.warnings import SupersessionWarning

    from assets.services.dagster_internals import development_server

    # Dagster names `dg dev` instead, which starts another web server than this one.
    warnings.filterwarnings("ignore", category=SupersessionWarning)
    dev, main = development_server()
    start = dev.open_ipc_subprocess

    def started(parts: Sequence[str], **kwargs: Any) -> subprocess.Popen[Any]:
        return start([__spec__.name if part == "dagster_webserver" else part for part in parts], **kwargs)

    dev.open_ipc_subprocess = started
    main()


def _run_web_server() -> None:
    from dagster_webserver import cli
    from dagster_webserver.webserver import DagsterWebserver

    show = DagsterWebserver.index_html_endpoint

    def show_styled(self: Any, request: Any) -> Any:
        page = show(self, request)
        page.body = bytes(page.body).replace(b"</head>", STYLE)
        page.headers["content-length"] = str(len(page.body))
        return page

    DagsterWebserver.index_html_endpoint = show_styled
    make_app = cli.create_app_from_workspace_process_context

    def make_local(*given: Any, **named: Any) -> Any:
        return LocalOnly(make_app(*given, **named))

    cli.create_app_from_workspace_process_context = make_local
    cli.main()


if __name__ == "__main__":
    main(sys.argv[1:])
