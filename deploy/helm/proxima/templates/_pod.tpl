{{/* What every container of the gateway's image gets: caches in one volume, a writable /tmp, no Python files from the
working folder. */}}
{{- define "proxima.env" -}}
- name: HOME
  value: /tmp
- name: XDG_CACHE_HOME
  value: /cache
- name: HF_HOME
  value: /cache/huggingface
- name: VLLM_CACHE_ROOT
  value: /cache/vllm
- name: TRITON_CACHE_DIR
  value: /cache/triton
- name: PYTHONSAFEPATH
  value: "1"
- name: PYTHONDONTWRITEBYTECODE
  value: "1"
{{- with .Values.secrets.hfToken }}
{{- if .name }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ .name }}
      key: {{ .key }}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "proxima.mounts" -}}
- name: cache
  mountPath: /cache
- name: tmp
  mountPath: /tmp
- name: shm
  mountPath: /dev/shm
{{- end -}}

{{- define "proxima.volumes" -}}
- name: config
  configMap:
    name: {{ include "proxima.fullname" . }}
- name: cache
  {{- if .Values.persistence.enabled }}
  persistentVolumeClaim:
    claimName: {{ default (printf "%s-cache" (include "proxima.fullname" .)) .Values.persistence.existingClaim }}
  {{- else }}
  emptyDir:
    sizeLimit: {{ .Values.persistence.size }}
  {{- end }}
- name: tmp
  emptyDir: {}
- name: shm
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.shmSize }}
{{- with .Values.secrets.apiKeys }}
{{- if .name }}
- name: api-keys
  secret:
    secretName: {{ .name }}
{{- end }}
{{- end }}
{{- with .Values.secrets.adminToken }}
{{- if .name }}
- name: admin-token
  secret:
    secretName: {{ .name }}
{{- end }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "proxima.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if .Values.gpu.count -}}
{{- $_ := set $resources "limits" (merge (dict .Values.gpu.resource (int .Values.gpu.count)) ($resources.limits | default dict)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Common to all containers with the gateway's image. */}}
{{- define "proxima.containerBase" -}}
image: {{ include "proxima.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
env: {{- include "proxima.env" . | nindent 2 }}
{{- with .Values.extraEnvFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "proxima.probe" -}}
httpGet:
  path: {{ .path }}
  port: {{ include "proxima.adminPortName" .root }}
  scheme: {{ include "proxima.adminScheme" .root | upper }}
{{ toYaml .timing }}
{{- end -}}

{{- define "proxima.serverContainer" -}}
- name: proxima
  {{- include "proxima.containerBase" . | nindent 2 }}
  command: {{- include "proxima.serveCommand" . | nindent 4 }}
  ports:
    - name: http
      containerPort: {{ include "proxima.port" . }}
    {{- if ne (include "proxima.adminPort" .) "0" }}
    - name: admin
      containerPort: {{ include "proxima.adminPort" . }}
    {{- end }}
  startupProbe: {{- include "proxima.probe" (dict "root" . "path" "/health/startup" "timing" .Values.probes.startup) | nindent 4 }}
  readinessProbe: {{- include "proxima.probe" (dict "root" . "path" "/health/ready" "timing" .Values.probes.readiness) | nindent 4 }}
  livenessProbe: {{- include "proxima.probe" (dict "root" . "path" "/health/live" "timing" .Values.probes.liveness) | nindent 4 }}
  {{- if gt (int .Values.shutdown.preStopSeconds) 0 }}
  lifecycle:
    preStop:
      sleep:
        seconds: {{ .Values.shutdown.preStopSeconds }}
  {{- end }}
  resources: {{- include "proxima.resources" . | nindent 4 }}
  volumeMounts:
    {{- include "proxima.mounts" . | nindent 4 }}
    - name: config
      mountPath: /etc/proxima/config
      readOnly: true
    {{- if .Values.secrets.apiKeys.name }}
    - name: api-keys
      mountPath: /etc/proxima/api-keys
      readOnly: true
    {{- end }}
    {{- if .Values.secrets.adminToken.name }}
    - name: admin-token
      mountPath: /etc/proxima/admin
      readOnly: true
    {{- end }}
    {{- with .Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "proxima.serveCommand" -}}
{{- $command := list "proxima" "serve" "--config" "/etc/proxima/config/proxima.yaml" -}}
{{- if and .Values.multiNode.enabled (eq .Values.multiNode.executor "mp") -}}
{{- $command = concat $command (list "--nnodes" "$(LWS_GROUP_SIZE)" "--node-rank" "0" "--master-addr" "$(LWS_LEADER_ADDRESS)" "--master-port" (toString .Values.multiNode.port)) -}}
{{- end -}}
{{- $command = concat $command .Values.extraArgs -}}
{{- if and .Values.multiNode.enabled (eq .Values.multiNode.executor "ray") -}}
{{- /* `exec` keeps proxima the process that gets SIGTERM. */ -}}
{{- $ray := printf "ray start --head --port=%d --disable-usage-stats && exec \"$@\"" (int .Values.multiNode.port) -}}
{{- $command = concat (list "/bin/sh" "-c" $ray "serve") $command -}}
{{- end -}}
{{- toYaml $command -}}
{{- end -}}

{{- define "proxima.downloadContainer" -}}
{{- $model := include "proxima.model" . -}}
- name: download
  {{- include "proxima.containerBase" . | nindent 2 }}
  {{- if contains "/" $model }}
  command: [hf, download, {{ $model | quote }}{{ with .Values.modelDownload.revision }}, --revision, {{ . | quote }}{{ end }}]
  {{- else }}
  command: [proxima, model, prepare, {{ $model | quote }}]
  {{- end }}
  resources: {{- toYaml .Values.resources | nindent 4 }}
  volumeMounts: {{- include "proxima.mounts" . | nindent 4 }}
{{- end -}}

{{/* Everything of a pod's spec but its containers. */}}
{{- define "proxima.podBase" -}}
serviceAccountName: {{ include "proxima.serviceAccountName" . }}
automountServiceAccountToken: false
# A Service called `vllm` would otherwise set VLLM_PORT and the like.
enableServiceLinks: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if .Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range .Values.topologySpreadConstraints }}
  - {{- toYaml (merge . (dict "labelSelector" (dict "matchLabels" (include "proxima.serverLabels" $ | fromYaml)))) | nindent 4 }}
  {{- end }}
{{- end }}
volumes: {{- include "proxima.volumes" . | nindent 2 }}
{{- end -}}

{{/* Metadata and spec of a pod that answers HTTP. */}}
{{- define "proxima.serverPod" -}}
metadata:
  labels:
    {{- include "proxima.labels" . | nindent 4 }}
    app.kubernetes.io/component: server
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: proxima
    checksum/config: {{ include "proxima.config" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  terminationGracePeriodSeconds: {{ include "proxima.gracePeriod" . }}
  {{- include "proxima.podBase" . | nindent 2 }}
  {{- if or .Values.modelDownload.enabled .Values.extraInitContainers }}
  initContainers:
    {{- if .Values.modelDownload.enabled }}
    {{- include "proxima.downloadContainer" . | nindent 4 }}
    {{- end }}
    {{- with .Values.extraInitContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  containers:
    {{- include "proxima.serverContainer" . | nindent 4 }}
    {{- with .Values.extraContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
