"""Settings of the gateway as an HTTP server: the API's port and the operators' port."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from proxima_config.sections.section import CliFlag, Networks, Section, Texts


class ServerSettings(Section):
    """Where and how the gateway answers HTTP."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on. The default answers this machine only; 0.0.0.0 answers everyone.",
    )
    port: int = Field(
        default=8000, ge=0, le=65535, description="TCP port to listen on. 0 takes a free one and logs which."
    )
    root_path: str = Field(
        default="",
        pattern=r"^(/.*[^/])?$",
        description="Path prefix that a reverse proxy in front strips, such as /llm. Used in links of the API docs.",
    )
    docs: bool = Field(
        default=True, description="Serve the interactive API docs at /docs and the schema at /openapi.json."
    )
    page: bool = Field(
        default=True,
        description="Serve the web page at /: live view, scheduler and chat. What it shows it asks for as any client "
        "does, with the admin token or an API key where those are needed.",
    )
    strict_params: bool = Field(
        default=False,
        description="Refuse parameters that have no effect here with 400, instead of listing them in the header "
        "x-proxima-ignored-params.",
    )
    max_sequences: int = Field(
        default=256,
        ge=1,
        le=16384,
        description="Most answers one request may ask for: its prompts times `n`. Each is a sequence of its own to the "
        "engine.",
    )
    ping_s: float = Field(
        default=10.0,
        ge=0,
        le=3600,
        description="Seconds between empty lines in a stream that keep proxies and clients from taking it for dead "
        "while the request waits or its prompt is computed. 0 for none.",
    )
    max_body_bytes: int = Field(
        default=64 * 1024 * 1024,
        ge=1024,
        description="Largest request body in bytes; more is refused with 413. The default is roomy for prompts with "
        "images in them and small enough that one client cannot fill the memory.",
    )
    max_header_bytes: int = Field(
        default=64 * 1024,
        ge=1024,
        le=16 * 1024 * 1024,
        description="Largest request line and headers together in bytes; more is refused with 431.",
    )
    keep_alive_s: int = Field(
        default=620,
        ge=1,
        le=86400,
        description="Seconds after which an idle connection is closed. Longer than what load balancers in front allow "
        "(60 s of AWS and nginx, 600 s of Google's), so that it is never us who close one they are about to use.",
    )
    header_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Seconds a client may take to send the headers of its request, after it connected or began.",
    )
    body_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Seconds for which a request body may stand still. What arrives earns time, a second for each KiB, "
        "so that a body that only trickles is ended too; 408 says so.",
    )
    send_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="Seconds for which a client may leave its answer unread. A stream that nobody reads is then "
        "aborted, and its KV blocks are free.",
    )
    trusted_proxies: Networks = Field(
        default=[],
        description="Addresses and networks of proxies in front (10.0.0.0/8) whose X-Forwarded-For and "
        "X-Forwarded-Proto say who the client is. Nobody else's are believed.",
    )
    cors_origins: Texts = Field(
        default=[],
        description="Web origins (https://app.example.com, or *) whose pages may call this API from a browser. None "
        "by default: browsers then refuse.",
    )
    tls_cert_file: str = Field(
        default="",
        description="PEM file with the certificate and its chain: serve HTTPS. Needs tls_key_file. A file that changes "
        "is loaded again within ten seconds, without a restart.",
    )
    tls_key_file: str = Field(default="", description="PEM file with the private key of tls_cert_file, unencrypted.")


class AdminSettings(Section):
    """Who may drain, inspect and profile the gateway."""

    port: Annotated[int, CliFlag("--admin-port")] = Field(
        default=0,
        ge=0,
        le=65535,
        description="TCP port of its own, plain HTTP, for /admin, /debug and /metrics, which the API's port then does "
        "not answer; /health answers on both. 0: all on one port.",
    )
    host: Annotated[str, CliFlag("--admin-host")] = Field(
        default="127.0.0.1", min_length=1, description="Address to listen on for admin.port."
    )
    token: Annotated[str, CliFlag("--admin-token")] = Field(
        default="",
        description="What /admin and /debug ask for as `Authorization: Bearer TOKEN`. Without a token they answer on "
        "admin.port, or where there is none to this machine only, unless a proxy or a web page that is not ours sent "
        "the request.",
    )
    token_file: Annotated[str, CliFlag("--admin-token-file")] = Field(
        default="",
        description="File that holds the token instead, read at each request, so that it can be changed at any time.",
    )
