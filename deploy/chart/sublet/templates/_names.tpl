{{- /* Why: what several manifests say in the same words, written once.

Names are fixed, because accounts, policies and the two webhook configurations know each other by
name, and most are of the whole cluster. Helm refuses a second release: the objects belong to the
first.

`sublet.labels` is given a list: the root, and the component if the object belongs to one process. */ -}}

{{- define "sublet.labels" -}}
{{- $root := index . 0 -}}
{app.kubernetes.io/name: sublet, app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- if gt (len .) 1 }}, app.kubernetes.io/component: {{ index . 1 }}{{ end -}} }
{{- end }}

{{- define "sublet.image" -}}
{{ .Values.image.repository }}
{{- with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "sublet.kubeSchedulerImage" -}}
{{- with .Values.scheduler.image -}}
{{ .repository }}{{ with .digest }}@{{ . }}{{ else }}:{{ .tag }}{{ end }}
{{- end }}
{{- end }}

{{- define "sublet.schedulerNames" -}}
- --scheduler-name=sublet-scheduler
{{- range concat .Values.scheduler.moreNames .Values.moreSchedulers }}
- --scheduler-name={{ . }}
{{- end }}
{{- end }}

{{- define "sublet.apiServer" -}}
{{- with .Values.apiServer }}
{{- if .host -}}
- {name: KUBERNETES_SERVICE_HOST, value: {{ quote .host }}}
- {name: KUBERNETES_SERVICE_PORT, value: {{ quote .port }}}
{{- end }}
{{- end }}
{{- end }}

{{- define "sublet.listen" -}}
{{- if contains ":" .Values.listen }}[{{ .Values.listen }}]{{ else }}{{ .Values.listen }}{{ end }}
{{- end }}

{{- define "sublet.probeHost" -}}
{{- if not (has .Values.listen (list "0.0.0.0" "::")) }}, host: {{ quote .Values.listen }}{{ end }}
{{- end }}
