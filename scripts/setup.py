"""Install Proxima into a virtual environment from the lock files. Called by the Makefile.

Standard library only, and old syntax on purpose: it has to run on whatever `python3` is, to say in one line what
is wrong with it. Re-running is a no-op: a stamp in the environment names what was installed.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SUPPORTED = (3, 11)
UV = "uv==0.13.9"
# Measured: the CPU environment takes 3.2 GB, the CUDA one about 12 GB; downloads come on top.
NEEDED_GB = {"cpu": 5, "cuda": 20}


def fail(message):
    sys.exit("proxima setup: " + message)


def check_python():
    if sys.version_info[:2] != SUPPORTED:
        fail(
            "needs Python %d.%d, but %s is %d.%d; run `make setup PYTHON=/path/to/python3.11`"
            % (SUPPORTED + (sys.executable,) + sys.version_info[:2])
        )


def check_disk(venv, extra):
    free_gb = shutil.disk_usage(os.path.dirname(os.path.abspath(venv))).free / 1e9
    if free_gb < NEEDED_GB[extra]:
        fail("needs %d GB of free disk for %s, but only %.1f GB are free" % (NEEDED_GB[extra], venv, free_gb))


def fingerprint(locks):
    digest = hashlib.sha256(sys.version.encode())
    for name in ["pyproject.toml", "scripts/setup.py"] + ["requirements/%s.txt" % lock for lock in locks]:
        with open(os.path.join(ROOT, name), "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def read_stamp(path):
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def create_environment(venv):
    if os.path.exists(os.path.join(venv, "bin", "python")):
        return
    print("proxima setup: creating %s" % venv, flush=True)
    if subprocess.call([sys.executable, "-m", "venv", venv]):
        fail("cannot create %s; on Debian or Ubuntu: apt-get install python3.11-venv" % venv)


def pip_settings(python):
    """What pip was told about package sources, so that uv looks in the same places."""
    listed = subprocess.run(
        [python, "-m", "pip", "config", "list"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False
    )
    settings = {}
    for line in listed.stdout.decode().splitlines():
        key, _, value = line.partition("=")
        settings.setdefault(key.split(".")[-1], value.strip("'"))
    return settings


def exists(source):
    path = source[len("file://") :] if source.startswith("file://") else source
    return "://" in path or os.path.isdir(path)


def uv_environment(python):
    environment = dict(os.environ)
    settings = pip_settings(python)
    for option, variable, separator in (
        ("index-url", "UV_DEFAULT_INDEX", " "),
        ("extra-index-url", "UV_INDEX", " "),
        ("find-links", "UV_FIND_LINKS", ","),
    ):
        sources = [source for source in settings.get(option, "").split() if exists(source)]
        if sources:
            environment.setdefault(variable, separator.join(sources))
    if "cert" in settings:
        environment.setdefault("SSL_CERT_FILE", settings["cert"])
    # pip treats all its sources as one; so must uv, or a package found in a partial local index hides the rest.
    environment.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    environment.setdefault("UV_HTTP_TIMEOUT", "180")
    environment.setdefault("UV_LINK_MODE", "copy")
    return environment


def explain(command, environment):
    """Run a failed uv command again, quickly and quietly, to name the cause in one line."""
    environment = dict(environment, UV_HTTP_TIMEOUT="5", UV_HTTP_RETRIES="0")
    result = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    text = result.stderr.decode("utf-8", "replace")
    lowered = text.lower()
    if "no space left" in lowered:
        return "the disk is full; free some space and run it again"
    if any(sign in lowered for sign in ("dns error", "error sending request", "connect", "timed out", "network")):
        return "cannot reach the package index; check the network or proxy, or set PIP_INDEX_URL to a mirror"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "the installer failed: " + (lines[-1] if lines else "no message")


def install(uv, environment, *arguments):
    command = [uv, "pip", "install"] + list(arguments)
    if subprocess.call(command, cwd=ROOT, env=environment):
        fail(explain(command, environment))


def install_cpu_torch(uv, environment, requirement, torch_index):
    """Take the CPU build from the configured sources if they have it, else from PyTorch's own index."""
    command = [uv, "pip", "install", "--no-deps", requirement]
    found = subprocess.run(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, check=False)
    if found.returncode:
        install(uv, environment, "--no-deps", "--default-index", torch_index, requirement)


def compile_bytecode(python):
    """Import what a start imports, so that each of its three processes does not compile five thousand files anew.

    Compiling everything would take twice as long; most of it is never imported. An environment that forbids writing
    bytecode means its own programs, not an installer. Only a matter of speed, so a failure does not matter.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    print("proxima setup: compiling (half a minute)", flush=True)
    imports = "import vllm.v1.worker.cpu_worker, vllm.entrypoints.generate.api_router, proxima_server.vllm_serving"
    subprocess.call([python, "-c", imports], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def locked(lock, name):
    with open(os.path.join(ROOT, "requirements", lock + ".txt")) as file:
        for line in file:
            if line.startswith(name + "=="):
                return line.split()[0]
    return fail("requirements/%s.txt does not name %s" % (lock, name))


def main():
    parser = argparse.ArgumentParser(description="Install Proxima from the lock files.")
    parser.add_argument("--venv", default=".venv")
    parser.add_argument("--extra", choices=sorted(NEEDED_GB), default="cpu")
    parser.add_argument("--dev", action="store_true", help="also install what the tests need")
    parser.add_argument("--no-editable", action="store_true", help="copy Proxima in, for images without its sources")
    parser.add_argument("--torch-index", required=True, help="where PyTorch's CPU wheels are, if not found elsewhere")
    options = parser.parse_args()
    check_python()
    lock = "dev" if options.dev else options.extra
    stamp_path = os.path.join(options.venv, ".proxima-setup.json")
    stamp = read_stamp(stamp_path)
    wanted = fingerprint(["cpu", "dev"] if options.extra == "cpu" else [options.extra])
    if stamp.get("fingerprint") == wanted and (stamp.get("dev") or not options.dev):
        return

    check_disk(options.venv, options.extra)
    create_environment(options.venv)
    bin_folder = os.path.abspath(os.path.join(options.venv, "bin"))
    python, uv = os.path.join(bin_folder, "python"), os.path.join(bin_folder, "uv")
    environment = dict(uv_environment(python), VIRTUAL_ENV=os.path.abspath(options.venv))
    if subprocess.call([python, "-m", "pip", "install", "-qq", "--retries", "1", "--disable-pip-version-check", UV]):
        fail("cannot install %s: no network, or the package index is unreachable (set PIP_INDEX_URL to a mirror)" % UV)
    print("proxima setup: installing requirements/%s.txt (about 3 GB, one to two minutes)" % lock, flush=True)
    if options.extra == "cpu":
        install_cpu_torch(uv, environment, locked("cpu", "torch"), options.torch_index)
    # --no-deps: the lock is complete, and vLLM's own wish list would bring builds that break it.
    install(uv, environment, "--no-deps", "-r", "requirements/%s.txt" % lock)
    project = ["."] if options.no_editable else ["-e", "."]
    install(uv, environment, "--no-deps", "--quiet", *project)
    compile_bytecode(python)
    with open(stamp_path, "w") as file:
        json.dump({"fingerprint": wanted, "dev": options.dev or bool(stamp.get("dev"))}, file)
    print("proxima setup: done; %s/proxima is ready" % os.path.relpath(bin_folder), flush=True)


if __name__ == "__main__":
    main()
