"""HTTPS, and certificates that are renewed while it serves."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from pathlib import Path

import httpx
import pytest
from certificates import who_answers, write_certificate
from fake_gateway import fake_gateway

from proxima_config.errors import ConfigError
from proxima_server.tls import Certificate


async def test_requests_and_streams_over_https(tmp_path):
    cert, key = write_certificate(tmp_path)
    settings = {"server": {"tls_cert_file": cert, "tls_key_file": key}, "admin": {"port": 1}}
    trust = ssl.create_default_context(cafile=cert)
    trust.check_hostname = False
    async with fake_gateway(certificate=Certificate(cert, key), verify=trust, **settings) as gateway:
        await gateway.ready()
        assert gateway.client.base_url.scheme == "https"
        stream = await gateway.client.post("/v1/completions", json={"stream": True, "prompt": "Hi"})
        assert stream.text.endswith("data: [DONE]\n\n")
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient(trust_env=False) as stranger:
                await stranger.get(gateway.client.base_url)
        # Operators' port is plain: probes and Prometheus know no certificate of ours.
        assert gateway.admin.base_url.scheme == "http"
        assert (await gateway.admin.get("/metrics")).status_code == 200


async def test_a_renewed_certificate_is_shown_to_the_next_connection(tmp_path):
    certificate = Certificate(*write_certificate(tmp_path))
    watching = asyncio.create_task(certificate.watch(check_s=0.01))
    async with fake_gateway(certificate=certificate, verify=False) as gateway:
        assert await who_answers(gateway.address) == "first"
        write_certificate(tmp_path, "second")
        async with asyncio.timeout(5):
            while await who_answers(gateway.address) != "second":
                await asyncio.sleep(0.01)
        watching.cancel()


def test_a_link_that_turns_is_a_change(tmp_path):
    """Kubernetes renews a mounted secret by turning a link to another folder."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_certificate(tmp_path / name, name)
    (tmp_path / "now").symlink_to("first")
    certificate = Certificate(str(tmp_path / "now" / "cert.pem"), str(tmp_path / "now" / "key.pem"))
    assert not certificate.reload_if_changed()
    (tmp_path / "next").symlink_to("second")
    (tmp_path / "next").replace(tmp_path / "now")
    assert certificate.reload_if_changed()


async def test_a_bad_renewal_is_not_used_and_a_later_good_one_is(tmp_path):
    certificate = Certificate(*write_certificate(tmp_path))
    (tmp_path / "other").mkdir()
    _, other_key = write_certificate(tmp_path / "other", "other")
    async with fake_gateway(certificate=certificate, verify=False) as gateway:
        # A key that belongs to another certificate.
        shutil.move(other_key, tmp_path / "key.pem")
        with pytest.raises(ssl.SSLError):
            certificate.reload_if_changed()
        assert not certificate.reload_if_changed()
        assert await who_answers(gateway.address) == "first"
        write_certificate(tmp_path, "second")
        assert certificate.reload_if_changed()
        assert await who_answers(gateway.address) == "second"


@pytest.mark.parametrize("spoil", ["missing", "nonsense", "encrypted"])
def test_what_is_no_certificate_is_told_at_the_start(tmp_path, spoil):
    cert, key = write_certificate(tmp_path, password=b"secret" if spoil == "encrypted" else None)
    if spoil == "missing":
        Path(key).unlink()
    elif spoil == "nonsense":
        (tmp_path / "cert.pem").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"server\.tls_cert_file"):
        Certificate(cert, key)
