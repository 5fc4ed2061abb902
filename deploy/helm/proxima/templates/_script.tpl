{{/* Pod spec that runs one of the chart's Python scripts, standard library only, in the gateway's image. */}}
{{- define "proxima.scriptPod" -}}
serviceAccountName: {{ include "proxima.serviceAccountName" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
restartPolicy: Never
securityContext: {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: script
    image: {{ include "proxima.image" .root }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    securityContext: {{- toYaml .root.Values.securityContext | nindent 6 }}
    command: {{- toYaml (concat (list "python" "-c" (.root.Files.Get .script)) .arguments) | nindent 6 }}
    {{- with .env }}
    env: {{- toYaml . | nindent 6 }}
    {{- end }}
    resources:
      requests: {cpu: 50m, memory: 64Mi}
      limits: {memory: 256Mi}
{{- end -}}
