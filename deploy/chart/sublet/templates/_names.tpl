{{- /* Why: what every object is labelled with, written once.

`sublet.labels` is given a list: the root, and the component if the object belongs to one process.
Names are fixed, because accounts, policies and the two webhook configurations know each other by
name, and most are of the whole cluster. Helm refuses a second release, since the objects belong
to the first. */ -}}

{{- define "sublet.labels" -}}
{{- $root := index . 0 -}}
{app.kubernetes.io/name: sublet, app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- if gt (len .) 1 }}, app.kubernetes.io/component: {{ index . 1 }}{{ end -}} }
{{- end }}

{{- define "sublet.image" -}}
{{ .repository }}:{{ .tag }}
{{- end }}
