{{/* The Service that clients' requests go to: the router's where there is one. */}}
{{- define "proxima.entryService" -}}
{{- include "proxima.fullname" . }}{{ if .Values.router.enabled }}-router{{ end }}
{{- end -}}
