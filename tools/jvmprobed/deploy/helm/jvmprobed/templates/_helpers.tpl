{{- define "jvmprobed.name" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains "jvmprobed" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-jvmprobed" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "jvmprobed.selectorLabels" -}}
app.kubernetes.io/name: jvmprobed
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "jvmprobed.labels" -}}
{{ include "jvmprobed.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{- define "jvmprobed.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "jvmprobed.name" .) -}}
{{- else -}}
{{- required "serviceAccount.name is required, because serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "jvmprobed.priorityClassName" -}}
{{- if .Values.priorityClass.create -}}
{{- .Values.priorityClass.name | default (include "jvmprobed.name" .) -}}
{{- else -}}
{{- .Values.priorityClass.name -}}
{{- end -}}
{{- end -}}

{{- define "jvmprobed.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/*
The configuration file. Helm reads all numbers as floats, and jvmprobed accepts no float for an integer. YAML also ends
lines at the three characters that are escaped here, so they would end the block that contains the file.
*/}}
{{- define "jvmprobed.toml" -}}
{{- $text := regexReplaceAll "(?m)( = -?[0-9]+)\\.0$" (toToml .Values.config) "${1}" -}}
{{- $text | replace "\u0085" "\\u0085" | replace "\u2028" "\\u2028" | replace "\u2029" "\\u2029" -}}
{{- end -}}

{{/* "true" if the kind of the Prometheus Operator is wanted: (list $ "PodMonitor" enabled) */}}
{{- define "jvmprobed.operatorKind" -}}
{{- $root := index . 0 -}}
{{- $kind := printf "monitoring.coreos.com/v1/%s" (index . 1) -}}
{{- $enabled := index . 2 -}}
{{- if or (eq (toString $enabled) "true") (and (eq (toString $enabled) "auto") ($root.Capabilities.APIVersions.Has $kind)) -}}
true
{{- end -}}
{{- end -}}

{{- define "jvmprobed.podMonitor" -}}
{{- include "jvmprobed.operatorKind" (list . "PodMonitor" .Values.podMonitor.enabled) -}}
{{- end -}}

{{/* Errors that the schema cannot express. */}}
{{- define "jvmprobed.check" -}}
{{- range .Values.config.push -}}
{{- if and $.Values.networkPolicy.enabled (not $.Values.networkPolicy.egress) (not (hasPrefix "dir=" .to)) -}}
{{- fail (printf "config.push has %s, but the NetworkPolicy allows no connection to it: add a rule to networkPolicy.egress, or set networkPolicy.enabled to false" .to) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraArgs -}}
{{- if regexMatch "^--(config|dir|listen|health-listen|web-config)(=|$)" . -}}
{{- fail (printf "extraArgs has %s, but the chart sets this option: use config, store.hostPath or metrics.webConfigSecret" .) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.metrics.webConfigSecret (include "jvmprobed.podMonitor" .) (eq .Values.podMonitor.scheme "http") (not .Values.podMonitor.basicAuth) -}}
{{- fail "metrics.webConfigSecret is set, but podMonitor has neither scheme https nor basicAuth: Prometheus could not read the metrics" -}}
{{- end -}}
{{- end -}}
