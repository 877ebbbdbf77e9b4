{{- /* Names. Cluster-wide ones carry the namespace, so that two releases of one name do not collide. */ -}}
{{- define "gantry.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "gantry.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "gantry.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "gantry.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "gantry.operator.name" -}}
{{ include "gantry.fullname" . }}-operator
{{- end }}

{{- define "gantry.operator.clusterName" -}}
{{ .Release.Namespace }}-{{ include "gantry.operator.name" . }}
{{- end }}

{{- define "gantry.metricsAPI.service" -}}
{{ include "gantry.fullname" . }}-metrics
{{- end }}

{{- define "gantry.operator.serviceAccount" -}}
{{- $account := .Values.operator.serviceAccount }}
{{- if $account.create }}
{{- default (include "gantry.operator.name" .) $account.name }}
{{- else }}
{{- required "operator.serviceAccount.name: name the ServiceAccount to use, or set operator.serviceAccount.create" $account.name }}
{{- end }}
{{- end }}

{{- define "gantry.fleet.name" -}}
{{ include "gantry.fullname" . }}-fleet
{{- end }}

{{- define "gantry.crds.name" -}}
{{ include "gantry.fullname" . }}-crds
{{- end }}

{{- define "gantry.crds.serviceAccount" -}}
{{- $account := .Values.crds.job.serviceAccount }}
{{- if $account.create }}
{{- include "gantry.crds.name" . }}
{{- else }}
{{- required "crds.job.serviceAccount.name: name the ServiceAccount to use, or set crds.job.serviceAccount.create" $account.name }}
{{- end }}
{{- end }}

{{- /* The names of our definitions, as a list in JSON: the names of the files that `make gen` writes. */ -}}
{{- define "gantry.crds.list" -}}
{{- $names := list }}
{{- range $path, $_ := .Files.Glob "files/crds/*.yaml" }}
{{- $names = append $names (base $path | trimSuffix ".yaml") }}
{{- end }}
{{- if not $names }}
{{- fail "the chart has no files/crds: run `make gen` first" }}
{{- end }}
{{- $names | sortAlpha | toJson }}
{{- end }}

{{- define "gantry.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gantry.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gantry.labels" -}}
{{ include "gantry.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: gantry
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "gantry.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{- define "gantry.fleet.image" -}}
{{- .Values.fleet.image | default (include "gantry.image" .) }}
{{- end }}

{{- /* What the "restricted" pod security standard asks for. */ -}}
{{- define "gantry.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "gantry.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- /* Refuse what would only fail later, and worse. */ -}}
{{- define "gantry.check" -}}
{{- $operator := .Values.operator }}
{{- if and (gt (int $operator.replicas) 1) (not $operator.leaderElection.enabled) }}
{{- fail "operator.leaderElection.enabled is false with several replicas: they would all act at once; set operator.replicas to 1" }}
{{- end }}
{{- if and $operator.metricsAPI.enabled (not $operator.metricsAPI.external) (not $operator.metricsAPI.custom) }}
{{- fail "operator.metricsAPI.enabled is true with neither external nor custom: nothing would be served; set one of them" }}
{{- end }}
{{- if and (eq .Values.crds.mode "templates") (semverCompare "<1.25-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "crds.mode is templates, and Kubernetes %s refuses validation rules in definitions: use crds.mode=job" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- end }}
