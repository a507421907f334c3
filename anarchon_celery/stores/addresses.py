"""The URLs of a Redis store: as the client wants them, and as they may be shown."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from ..errors import StoreUnusable

#: What a URL may ask of the client. The rest is Celery's, such as ``visibility_timeout``.
_OF_THE_CLIENT = ("db", "username", "password", "client_name", "health_check_interval", "max_connections",
                  "protocol", "socket_", "ssl_")  # fmt: skip


def address_of(url: str) -> tuple[str, str]:
    """Return the URL as the client wants it, and as it may be shown."""
    scheme, _, way = url.partition(":")[0].lower().partition("+")
    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        db = int(query.pop("virtual_host", "0").strip("/") or 0) if way else int(parts.path.strip("/") or 0)
        host, port = parts.hostname or "localhost", parts.port or 6379
        if parts.fragment or way not in ("", "socket"):
            raise ValueError
    except ValueError:
        # Not even a part of it is shown: it may be one of the password.
        raise StoreUnusable(
            f"the {scheme} URL of the store cannot be read: {scheme}://:password@host:6379/0 is right, "
            "with %40, %2F, … for what is special in the password"
        ) from None
    wanted = {
        name: value.lower().removeprefix("cert_") if name == "ssl_cert_reqs" else value
        for name, value in query.items() if name.startswith(_OF_THE_CLIENT)
    }  # fmt: skip
    if way:
        login = parts.netloc.rpartition("@")[0]
        shown = f"{scheme}+socket://{parts.path}?virtual_host={db}"
        return f"unix://{login}{'@' if login else ''}{parts.path}?{urlencode({'db': db, **wanted})}", shown
    host = f"[{host}]" if ":" in host else host
    secure = "rediss" if scheme in ("rediss", "valkeys") else "redis"
    address = f"{secure}://{parts.netloc or 'localhost'}/{db}?{urlencode(wanted)}"
    return address, f"{scheme}://{quote(host, safe='[]:%')}:{port}/{db}"
