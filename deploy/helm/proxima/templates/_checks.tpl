{{/* Combinations that the schema cannot refuse. Each says what to do. */}}
{{- define "proxima.checks" -}}
{{- with .Values -}}
{{- if and .ingress.enabled (not .ingress.host) -}}
{{- fail "ingress.enabled needs ingress.host: without one it would answer for every name of the cluster" -}}
{{- end -}}
{{- if .httpRoute.enabled -}}
{{- if not .httpRoute.hostnames -}}
{{- fail "httpRoute.enabled needs httpRoute.hostnames: without one it would answer for every name of the gateway" -}}
{{- end -}}
{{- if not .httpRoute.parentRefs -}}
{{- fail "httpRoute.enabled needs httpRoute.parentRefs: the gateway it belongs to" -}}
{{- end -}}
{{- end -}}
{{- if and .autoscaling.hpa.enabled .autoscaling.keda.enabled -}}
{{- fail "autoscaling.hpa.enabled and autoscaling.keda.enabled contradict each other: KEDA makes an autoscaler of its own" -}}
{{- end -}}
{{- if gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas) -}}
{{- fail "autoscaling.minReplicas is greater than autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and .autoscaling.keda.enabled (not .autoscaling.keda.prometheus) -}}
{{- fail "autoscaling.keda.enabled needs autoscaling.keda.prometheus: where to ask for the queue" -}}
{{- end -}}
{{- if and .metricGate.enabled (not .metricGate.prometheus) -}}
{{- fail "metricGate.enabled needs metricGate.prometheus: where to ask" -}}
{{- end -}}
{{- if and .podMonitor.enabled .serviceMonitor.enabled -}}
{{- fail "podMonitor.enabled and serviceMonitor.enabled would scrape every pod twice: choose one" -}}
{{- end -}}
{{- if and .inferencePool.enabled (not .inferencePool.endpointPicker) -}}
{{- fail "inferencePool.enabled needs inferencePool.endpointPicker: the Service of the endpoint picker" -}}
{{- end -}}
{{- if and .inferencePool.enabled .router.enabled -}}
{{- fail "inferencePool.enabled and router.enabled both choose the replica: use one" -}}
{{- end -}}
{{- if and .router.enabled (not .router.image) -}}
{{- fail "router.enabled needs router.image: an image with vllm-router" -}}
{{- end -}}
{{- if and .modelDownload.enabled (or (hasPrefix "/" (include "proxima.model" $)) (hasPrefix "." (include "proxima.model" $))) -}}
{{- fail "modelDownload.enabled, but config.model is a folder: mount it with extraVolumes instead" -}}
{{- end -}}
{{- if .multiNode.enabled -}}
{{- if not .gpu.count -}}
{{- fail "multiNode.enabled needs gpu.count: vLLM spreads a model over nodes with GPUs only" -}}
{{- end -}}
{{- if and (eq .multiNode.executor "mp") .config.preset -}}
{{- fail "multiNode.executor mp: workers do not read presets; write config.engine out instead of config.preset" -}}
{{- end -}}
{{- if not .config.model -}}
{{- fail "multiNode.enabled needs config.model" -}}
{{- end -}}
{{- end -}}
{{- if and (eq (include "proxima.port" $) (include "proxima.adminPort" $)) -}}
{{- fail "config.server.port and config.admin.port are the same" -}}
{{- end -}}
{{- if eq (include "proxima.port" $) "0" -}}
{{- fail "config.server.port 0 takes any free port; a pod needs one that is known" -}}
{{- end -}}
{{- end -}}
{{- end -}}
