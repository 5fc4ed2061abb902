"""Asks the model hub about a model before a minute is spent on starting an engine that cannot load it."""

from __future__ import annotations

import logging

from proxima_config.errors import ModelError

logger = logging.getLogger(__name__)

_UNAUTHORISED = 401
_FORBIDDEN = 403
_TIMEOUT_S = 10.0


def locate(model_id: str, revision: str | None = None) -> str:
    """What vLLM should load: the id itself, or the folder of the cached copy when the hub cannot be reached.

    Raises ModelError: not found, gated, or unreachable with nothing cached. Tokens (HF_TOKEN, `hf auth login`),
    HF_ENDPOINT and HF_HUB_OFFLINE work as they do for huggingface_hub.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is that of its HTTP library
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    # vLLM's notation for one file of a GGUF repository: owner/name:quantisation.
    repository = model_id.partition(":")[0]
    try:
        get_hf_file_metadata(hf_hub_url(repository, "config.json", revision=revision))
    except HFValidationError as error:
        raise ModelError(f"{model_id} is neither a local folder nor an id of the model hub (owner/name)") from error
    except GatedRepoError as error:
        raise ModelError(
            f"model {repository} is gated; accept its licence at https://huggingface.co/{repository} "
            "and set HF_TOKEN to a token of that account"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"model {repository} is neither a local folder nor on the model hub; "
            "if it is private, set HF_TOKEN to a token that may read it"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(f"model {repository} has no revision {revision}") from error
    except EntryNotFoundError:
        # Repositories of GGUF and Mistral files have no config.json; vLLM knows what to do with them.
        return model_id
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (_UNAUTHORISED, _FORBIDDEN):
            raise ModelError(f"the model hub refuses access to {repository} ({status}); check HF_TOKEN") from error
        return _cached(repository, revision, f"the model hub answered {status}", error)
    except OfflineModeIsEnabled as error:
        return _cached(repository, revision, "HF_HUB_OFFLINE is set", error)
    except (HTTPError, OSError) as error:
        return _cached(repository, revision, f"the model hub cannot be reached ({error})", error)
    return model_id


def weights_bytes(model_id: str, revision: str | None = None) -> int:
    """Size of the weights as the hub has them, of the format that vLLM would take; 0 where it does not say."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (  # type: ignore[attr-defined]  # as above
        HfHubHTTPError,
        HFValidationError,
        HTTPError,
        OfflineModeIsEnabled,
    )

    try:
        info = HfApi().model_info(
            model_id.partition(":")[0], revision=revision, files_metadata=True, timeout=_TIMEOUT_S
        )
    except (HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled, OSError):
        return 0
    sizes = [(file.rfilename, file.size or 0) for file in info.siblings or ()]
    for ending in (".safetensors", ".bin", ".pt"):
        if total := sum(size for name, size in sizes if name.endswith(ending)):
            return total
    return 0


def _cached(repository: str, revision: str | None, reason: str, error: Exception) -> str:
    """The folder of an earlier download."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        # A folder instead of the id keeps vLLM from asking the hub again, with long retries.
        folder = snapshot_download(repository, revision=revision, local_files_only=True)
    except LocalEntryNotFoundError:
        raise ModelError(f"cannot get model {repository}: {reason}, and there is no downloaded copy of it") from error
    logger.warning("%s; using the downloaded copy of %s in %s", reason, repository, folder)
    return folder
