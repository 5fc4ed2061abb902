{{- define "proxima.scaleTarget" -}}
{{- if .Values.multiNode.enabled -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
{{- else -}}
apiVersion: apps/v1
kind: Deployment
{{- end }}
name: {{ include "proxima.fullname" . }}
{{- end -}}

{{/* New pods take minutes to load: add at once, remove one at a time and late. */}}
{{- define "proxima.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - type: Percent
      value: 100
      periodSeconds: 60
scaleDown:
  stabilizationWindowSeconds: {{ .Values.autoscaling.scaleDownSeconds }}
  policies:
    - type: Pods
      value: 1
      periodSeconds: 60
{{- end -}}

{{- define "proxima.podMatcher" -}}
namespace="{{ .Release.Namespace }}",pod=~"{{ include "proxima.fullname" . }}-.+"
{{- end -}}
