{{- define "pybackend.name" -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "pybackend.selector" -}}
app.kubernetes.io/name: pybackend
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "pybackend.labels" -}}
{{ include "pybackend.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "pybackend.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* The containers' rights: none. */ -}}
{{- define "pybackend.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* A probe. With TLS, Kubernetes asks with it, and looks at no certificate. */ -}}
{{- define "pybackend.probe" -}}
httpGet: { path: {{ .path }}, port: http{{ if index .flags "http-use-ssl" }}, scheme: HTTPS{{ end }} }
{{- end -}}

{{- /* What the startup probe asks: whether one model is ready, or all models that there are, which may be none. */ -}}
{{- define "pybackend.startPath" -}}
{{- if .Values.probes.model -}} /v2/models/{{ .Values.probes.model }}/ready {{- else -}} /v2/health/ready {{- end -}}
{{- end -}}

{{- /* A value of the configuration file: JSON's texts, numbers, booleans and lists are TOML's. */ -}}
{{- define "pybackend.toml" -}}
{{- range $flag, $value := . }}
{{ $flag }} = {{ if kindIs "float64" $value }}{{ int64 $value }}{{ else }}{{ toJson $value }}{{ end }}
{{- end }}
{{- end -}}
