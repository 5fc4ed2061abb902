{{- define "proxima.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{/* Short enough for the longest suffix that objects append. */}}
{{- define "proxima.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "proxima.selectorLabels" -}}
app.kubernetes.io/name: {{ include "proxima.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of the pods that answer HTTP: neither workers of a group nor routers. */}}
{{- define "proxima.serverLabels" -}}
{{ include "proxima.selectorLabels" . }}
app.kubernetes.io/component: server
{{- end -}}

{{- define "proxima.labels" -}}
{{ include "proxima.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "proxima.serviceAccountName" -}}
{{- $made := ternary (include "proxima.fullname" .) "default" .Values.serviceAccount.create -}}
{{- default $made .Values.serviceAccount.name -}}
{{- end -}}

{{- define "proxima.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default (printf "%s-%s" $.Chart.AppVersion (ternary "cuda" "cpu" (gt (int $.Values.gpu.count) 0))) .tag }}
{{- end -}}
{{- end -}}
{{- end -}}
