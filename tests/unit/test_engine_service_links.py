"""A Kubernetes Service called `vllm` beside the pod does not keep the engine from starting."""

from __future__ import annotations

import pytest

from proxima_engine.launch import drop_service_links


def test_what_kubernetes_injects_is_dropped_and_named():
    environ = {
        "VLLM_PORT": "tcp://10.0.0.1:8000",
        "VLLM_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "VLLM_PORT_8000_TCP_ADDR": "10.0.0.1",
        "VLLM_SERVICE_HOST": "10.0.0.1",
        "VLLM_SERVICE_PORT": "8000",
        "VLLM_SERVICE_PORT_HTTP": "8000",
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    dropped = drop_service_links(environ)
    assert environ == {"VLLM_LOGGING_LEVEL": "INFO"}
    assert "VLLM_PORT" in dropped


@pytest.mark.parametrize("environ", [{"VLLM_PORT": "20000"}, {"VLLM_HOST_IP": "10.0.0.2"}, {"PORT": "tcp://10.0.0.1"}])
def test_what_the_user_set_stays(environ):
    kept = dict(environ)
    assert drop_service_links(environ) == []
    assert environ == kept
