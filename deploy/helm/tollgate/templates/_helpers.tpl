{{- define "tollgate.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- /* Room for the suffix of a door. */ -}}
{{- define "tollgate.fullname" -}}
{{- $name := include "tollgate.name" . -}}
{{- $release := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- .Values.fullnameOverride | default $release | trunc 57 | trimSuffix "-" -}}
{{- end -}}

{{- define "tollgate.selector" -}}
app.kubernetes.io/name: {{ include "tollgate.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tollgate.labels" -}}
{{ include "tollgate.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_") }}
{{- end -}}

{{- define "tollgate.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* "yes" if all pods count in one store. The store may come from the environment. */ -}}
{{- define "tollgate.shared" -}}
{{- $store := .Values.config.store | default dict -}}
{{- if or $store.redis $store.sentinel .Values.envFrom -}}yes
{{- else -}}
{{- range .Values.env }}{{ if eq .name "TOLLGATE_STORE" }}yes{{ end }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "tollgate.replicas" -}}
{{- $default := include "tollgate.shared" . | empty | ternary 1 2 -}}
{{- kindIs "invalid" .Values.replicas | ternary $default .Values.replicas | int -}}
{{- end -}}

{{- define "tollgate.mostReplicas" -}}
{{- .Values.autoscaling.enabled | ternary .Values.autoscaling.maxReplicas (include "tollgate.replicas" .) | int -}}
{{- end -}}

{{- /* The configuration with what values.yaml promises to add. */ -}}
{{- define "tollgate.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $auth := $config.auth | default dict -}}
{{- $asks := or $auth.check_token_files (hasKey $auth "allow_anonymous") -}}
{{- range $config.tokens -}}
{{- $asks = or $asks (has "check" .scopes) -}}
{{- end -}}
{{- if not $asks -}}
{{- $_ := set $auth "allow_anonymous" true -}}
{{- end -}}
{{- $fallback := $config.fallback | default dict -}}
{{- $nodes := dict "expected_nodes" (include "tollgate.mostReplicas" . | int) -}}
{{- $_ := set $config "auth" $auth -}}
{{- $_ := set $config "fallback" (merge $fallback $nodes) -}}
{{- $_ := set $config "listen" ($config.listen | default "0.0.0.0:7070") -}}
{{- $_ := set $config "policies" ($config.policies | default (dict "default" (dict "quotas" (list "1000 per 1s")))) -}}
{{- toYaml $config -}}
{{- end -}}

{{- /* The port of each door that the configuration opens. */ -}}
{{- define "tollgate.doors" -}}
{{- $config := include "tollgate.config" . | fromYaml -}}
{{- $listens := dict "http" $config.listen "admin" $config.admin_listen -}}
{{- range $door := list "envoy" "resp" -}}
{{- $_ := set $listens $door (get (get $config $door | default dict) "listen") -}}
{{- end -}}
{{- range $door, $listen := $listens -}}
{{- if $listen }}
{{ $door }}: {{ regexFind "[0-9]+$" $listen }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tollgate.metricsDoor" -}}
{{- .Values.config.admin_listen | empty | ternary "http" "admin" -}}
{{- end -}}

{{- define "tollgate.scheme" -}}
{{- .Values.config.tls | empty | ternary "http" "https" -}}
{{- end -}}

{{- /* Kubernetes has no client certificate to show, so the pod asks itself where one is needed. */ -}}
{{- define "tollgate.probe" -}}
{{- $tls := .root.Values.config.tls | default dict -}}
{{- if not $tls.client_ca_file }}
httpGet: {path: {{ .path }}, port: http, scheme: {{ include "tollgate.scheme" .root | upper }}}
{{- else if eq .path "/health/live" }}
tcpSocket: {port: http}
{{- else }}
exec: {command: [tollgate, health]}
{{- end }}
{{- end -}}
