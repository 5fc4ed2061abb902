"""vLLM command-line flags that Proxima does not pass on, and what to use instead.

vLLM's own HTTP server is not part of the product: its engine is embedded and the gateway answers HTTP. A flag of that
server would silently do nothing, so using one is an error that names the way out. The generator leaves exactly these
out of ``vllm_flags.json``.
"""

from __future__ import annotations

_TLS = "terminate TLS in front of the gateway (ingress, load balancer or reverse proxy)"
_CORS = "set CORS headers in front of the gateway (ingress or reverse proxy)"
_HTTP_LIMITS = "limit headers in front of the gateway (ingress or reverse proxy)"
_NOT_SERVED = "Proxima does not serve the endpoints that this flag belongs to"
_LAUNCHER = "it belongs to vLLM's launcher; Proxima embeds one engine client per gateway"
_SUPERVISOR = "it belongs to vLLM's data-parallel supervisor; run one gateway per replica instead"

# dest of the flag in vLLM's parser -> what to do instead, as the end of a sentence.
OWNED_FLAGS: dict[str, str] = {
    "model_tag": "use the positional MODEL or the key `model`",
    "model": "use the positional MODEL or the key `model`",
    "config": "use --config of proxima, or PROXIMA__CONFIG",
    "host": "use the key `server.host`",
    "port": "use the key `server.port`",
    "root_path": "use the key `server.root_path`",
    "disable_fastapi_docs": "use --no-docs or the key `server.docs`",
    "log_level": "use --log-level of proxima or the key `logging.level`; it reaches the engine too",
    "uvicorn_log_level": "use --log-level or the key `logging.level`",
    "log_config_file": "use --logging-config.pylogging_config_file (vLLM removes the old flag in its next release)",
    "disable_uvicorn_access_log": "there is an access log at --log-level debug only",
    "disable_access_log_for_endpoints": "there is an access log at --log-level debug only",
    "enable_request_id_headers": "add request ids in front of the gateway (ingress or reverse proxy)",
    "log_error_stack": "use --log-level debug",
    "uds": "serve on a TCP port with `server.host` and `server.port`",
    "api_key": "use the key `auth.api_keys_file` or `auth.api_keys`",
    "ssl_keyfile": _TLS,
    "ssl_certfile": _TLS,
    "ssl_ca_certs": _TLS,
    "ssl_cert_reqs": _TLS,
    "ssl_ciphers": _TLS,
    "enable_ssl_refresh": _TLS,
    "allow_credentials": _CORS,
    "allowed_origins": _CORS,
    "allowed_methods": _CORS,
    "allowed_headers": _CORS,
    "middleware": "wrap the gateway in a reverse proxy; it loads no foreign middleware",
    "h11_max_incomplete_event_size": _HTTP_LIMITS,
    "h11_max_header_count": _HTTP_LIMITS,
    "sse_keep_alive_interval": "the gateway keeps idle streams alive by itself",
    "enable_server_load_tracking": "use /metrics, which always carries the load",
    "enable_tokenizer_info_endpoint": _NOT_SERVED,
    "tokens_only": _NOT_SERVED,
    "enable_scale_out": _NOT_SERVED,
    "enable_offline_docs": _NOT_SERVED,
    "cohere_is_reasoning_model": _NOT_SERVED,
    "anthropic_disabled_thinking_effort": _NOT_SERVED,
    "enable_flash_late_interaction": _NOT_SERVED,
    "headless": _LAUNCHER,
    "api_server_count": _LAUNCHER,
    "grpc": _LAUNCHER,
    "grpc_port": _LAUNCHER,
    "data_parallel_multi_port_external_lb": _SUPERVISOR,
    "data_parallel_supervisor_port": _SUPERVISOR,
    "dp_supervisor_probe_interval_s": _SUPERVISOR,
    "dp_supervisor_probe_timeout_s": _SUPERVISOR,
    "dp_supervisor_probe_failure_threshold": _SUPERVISOR,
}
