"""What the chart uses of foreign kinds, by their published descriptions.

Kubernetes' own schemas do not know them. Unknown fields are refused, so that a misspelt one is found. Those of
inference.networking.k8s.io/v1 follow its reference; those of gateway.networking.k8s.io/v1, leaderworkerset.x-k8s.io/v1,
keda.sh/v1alpha1 and monitoring.coreos.com/v1 follow examples and hold only what the chart uses of them.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string", "minLength": 1}
_PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
_LABELS: Schema = {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1}
_DURATION: Schema = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
_ANY: Schema = {}


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "additionalProperties": False, "required": [*required], "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "minItems": 1, "items": items}


_BACKEND = _object(
    {"name": _TEXT, "weight": {"type": "integer", "minimum": 0, "maximum": 1_000_000}},
    {"port": _PORT, "group": _TEXT, "kind": _TEXT},
)
_ROUTE = _object(
    {
        "parentRefs": _list(_object({"name": _TEXT}, {"namespace": _TEXT, "sectionName": _TEXT, "port": _PORT})),
        "hostnames": _list(_TEXT),
        "rules": _list(
            _object(
                {
                    "matches": _list(_object({"path": _object({"type": {"const": "PathPrefix"}, "value": _TEXT})})),
                    "timeouts": _object({"request": _DURATION, "backendRequest": _DURATION}),
                    "backendRefs": _list(_BACKEND),
                }
            )
        ),
    }
)
_POOL = _object(
    {
        "selector": _object({"matchLabels": _LABELS}),
        "targetPorts": _list(_object({"number": _PORT})),
        "endpointPickerRef": _object(
            {"name": _TEXT, "port": _object({"number": _PORT})}, {"failureMode": {"enum": ["FailOpen", "FailClose"]}}
        ),
    }
)
_OBJECTIVE = _object(
    {"poolRef": _object({"name": _TEXT}, {"group": _TEXT, "kind": _TEXT})}, {"priority": {"type": "integer"}}
)
_POD = _object({"metadata": _ANY, "spec": _ANY})
_GROUP = _object(
    {
        "leaderWorkerTemplate": _object(
            {
                "size": {"type": "integer", "minimum": 1},
                "restartPolicy": {"enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
                "leaderTemplate": _POD,
                "workerTemplate": _POD,
            }
        ),
        "rolloutStrategy": _object(
            {
                "type": {"const": "RollingUpdate"},
                "rollingUpdateConfiguration": _object(
                    {"maxSurge": {"type": ["integer", "string"]}, "maxUnavailable": {"type": ["integer", "string"]}}
                ),
            }
        ),
        "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
    },
    {"replicas": {"type": "integer", "minimum": 0}},
)
_TRIGGER = _object(
    {
        "type": {"const": "prometheus"},
        # KEDA takes texts only.
        "metadata": _object({"serverAddress": _TEXT, "query": _TEXT, "threshold": {"type": "string"}}),
    },
    {"name": _TEXT, "metricType": {"enum": ["AverageValue", "Value"]}},
)
_SCALED = _object(
    {
        "scaleTargetRef": _object({"name": _TEXT, "kind": _TEXT, "apiVersion": _TEXT}),
        "minReplicaCount": {"type": "integer", "minimum": 1},
        "maxReplicaCount": {"type": "integer", "minimum": 1},
        "advanced": _object({"horizontalPodAutoscalerConfig": _object({"behavior": _ANY})}),
        "triggers": _list(_TRIGGER),
    }
)
_ENDPOINT = _object({"port": _TEXT, "scheme": {"enum": ["http", "https"]}, "path": _TEXT, "interval": _DURATION})
_MONITORED = {"selector": _object({"matchLabels": _LABELS})}
_ALERT = _object({"alert": _TEXT, "expr": _TEXT, "for": _DURATION, "labels": _LABELS, "annotations": _LABELS})
_RECORD = _object({"record": _TEXT, "expr": _TEXT})
_RULES = _object({"groups": _list(_object({"name": _TEXT, "rules": _list({"anyOf": [_ALERT, _RECORD]})}))})

SPECS: dict[tuple[str, str], Schema] = {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _ROUTE,
    ("inference.networking.k8s.io/v1", "InferencePool"): _POOL,
    ("inference.networking.x-k8s.io/v1alpha2", "InferenceObjective"): _OBJECTIVE,
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): _GROUP,
    ("keda.sh/v1alpha1", "ScaledObject"): _SCALED,
    ("monitoring.coreos.com/v1", "PodMonitor"): _object({**_MONITORED, "podMetricsEndpoints": _list(_ENDPOINT)}),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): _object({**_MONITORED, "endpoints": _list(_ENDPOINT)}),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _RULES,
}
"""Schema of `spec` by apiVersion and kind."""
