{{/* The file for `proxima serve --config`: the values' `config`, and where the mounted secrets lie. */}}
{{- define "proxima.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if .Values.secrets.apiKeys.name -}}
{{- $_ := set $config "auth" (merge (dict "api_keys_file" (printf "/etc/proxima/api-keys/%s" .Values.secrets.apiKeys.key)) ($config.auth | default dict)) -}}
{{- end -}}
{{- if .Values.secrets.adminToken.name -}}
{{- $_ := set $config "admin" (merge (dict "token_file" (printf "/etc/proxima/admin/%s" .Values.secrets.adminToken.key)) ($config.admin | default dict)) -}}
{{- end -}}
{{- if .Values.multiNode.enabled -}}
{{- $_ := set $config "engine" (merge (dict "distributed_executor_backend" .Values.multiNode.executor) ($config.engine | default dict)) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* What the workers of a group give vLLM: the leader's engine flags under vLLM's own names. */}}
{{- define "proxima.workerConfig" -}}
{{- $flags := dict "model" .Values.config.model -}}
{{- range $name, $value := (include "proxima.config" . | fromYaml).engine -}}
{{- $_ := set $flags (replace "_" "-" $name) $value -}}
{{- end -}}
{{- toYaml $flags -}}
{{- end -}}

{{- define "proxima.model" -}}
{{- default "smollm2-135m" .Values.config.model -}}
{{- end -}}

{{/* The name that clients ask for. */}}
{{- define "proxima.servedModel" -}}
{{- $served := dig "engine" "served_model_name" (include "proxima.model" .) .Values.config -}}
{{- if kindIs "slice" $served }}{{ first $served }}{{ else }}{{ $served }}{{ end -}}
{{- end -}}

{{- define "proxima.port" -}}
{{- dig "server" "port" 8000 .Values.config | int -}}
{{- end -}}

{{- define "proxima.adminPort" -}}
{{- dig "admin" "port" 0 .Values.config | int -}}
{{- end -}}

{{/* Name of the port for probes, metrics and drain. */}}
{{- define "proxima.adminPortName" -}}
{{- ternary "http" "admin" (eq (include "proxima.adminPort" .) "0") -}}
{{- end -}}

{{- define "proxima.scheme" -}}
{{- ternary "http" "https" (empty (dig "server" "tls_cert_file" "" .Values.config)) -}}
{{- end -}}

{{/* The admin port is plain HTTP whatever the API's port is. */}}
{{- define "proxima.adminScheme" -}}
{{- ternary (include "proxima.scheme" .) "http" (eq (include "proxima.adminPort" .) "0") -}}
{{- end -}}

{{/* preStop, then the drain, then 5 s for last bytes and 10 s for the engine's processes: docs/drain.md. */}}
{{- define "proxima.gracePeriod" -}}
{{- $needed := addf .Values.shutdown.preStopSeconds (dig "lifecycle" "drain_s" 25 .Values.config) -}}
{{- $given := .Values.shutdown.terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $given -}}
{{- addf $needed 15 | ceil | int -}}
{{- else if le (float64 $given) (float64 $needed) -}}
{{- fail (printf "shutdown.terminationGracePeriodSeconds is %v, but preStop (%v s) and drain (config.lifecycle.drain_s) together need more than %v s: raise it, or leave it empty to derive it" $given .Values.shutdown.preStopSeconds $needed) -}}
{{- else -}}
{{- int $given -}}
{{- end -}}
{{- end -}}

{{- define "proxima.startupSeconds" -}}
{{- mul .Values.probes.startup.periodSeconds .Values.probes.startup.failureThreshold -}}
{{- end -}}
