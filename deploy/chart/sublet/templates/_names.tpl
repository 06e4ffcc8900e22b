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

{{- /* Given a user's selector. The image is built for x86-64 alone. */ -}}
{{- define "sublet.nodeSelector" -}}
nodeSelector: {{ merge (dict) . (dict "kubernetes.io/arch" "amd64") | toJson }}
{{- end }}

{{- /* Fails where two listeners of one network have the same port: those of a pod, and with hostNetwork
all that may be on one node. */ -}}
{{- define "sublet.portsDiffer" -}}
{{- $taken := dict }}
{{- $host := .Values.hostNetwork }}
{{- range $process, $ports := dict "scheduler" .Values.scheduler.ports "agent" .Values.agent.ports
  "controller" (ternary .Values.controller.ports dict .Values.controller.enabled) }}
{{- range $name, $port := $ports }}
{{- $network := printf "%s:%d" (ternary "node" $process $host) (int $port) }}
{{- $value := printf "%s.ports.%s" $process $name }}
{{- with get $taken $network }}
{{- fail (printf "port %d stands in %s and in %s: each listens for itself%s" (int $port) . $value
  (ternary ", and with hostNetwork all on one node" "" $host)) }}
{{- end }}
{{- $_ := set $taken $network $value }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Fails where `agent.simulated` is nothing that the agent can read: its log would be the first to say
so. What else a card may have stands in docs/guide, and the agent checks it. */ -}}
{{- define "sublet.cardsRead" -}}
{{- $file := fromYaml . }}
{{- if not (kindIs "slice" $file.gpus) }}
{{- fail (printf "agent.simulated is `%s`, and has no list of cards, such as `gpus: [{memory: 16GiB, count: 2}]`" .) }}
{{- end }}
{{- range $at, $cards := $file.gpus }}
{{- $memory := ternary (dict "memory" "") $cards (not (kindIs "map" $cards)) | dig "memory" "" | toString }}
{{- if not (regexMatch "^[1-9][0-9]*(MiB|GiB)$" $memory) }}
{{- fail (printf "agent.simulated: gpus[%d] needs a memory such as 16GiB, and has `%s`" $at $memory) }}
{{- end }}
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

{{- /* Variables and a validation of policies that hold somebody to a few fields. `parts` has, for each
part of the object, what it was, what it is to be, and the fields of it that may differ. All others
may not, whatever Kubernetes calls them; so what a later version adds is refused as well. */ -}}
{{- define "sublet.changed" -}}
# The fields that would be others and may not.
- name: changed
  expression: >-
    variables.parts.map(part,
    (part[0].filter(field, !(field in part[2]) && part[0][?field] != part[1][?field])
    + part[1].filter(field, !(field in part[2]) && !(field in part[0]))).join(', '))
    .filter(fields, fields != '')
{{- end }}

{{- define "sublet.kept" -}}
{{- /* What the API server itself writes with each change. */ -}}
['annotations', 'managedFields', 'resourceVersion', 'generation']
{{- end }}

{{- define "sublet.byTheAgent" -}}
matchConditions:
- name: by-the-agent
  expression: "request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:sublet-agent'"
{{- end }}

{{- define "sublet.byTheController" -}}
matchConditions:
- name: by-the-controller
  expression: "request.userInfo.username == 'system:serviceaccount:{{ .Release.Namespace }}:sublet-controller'"
{{- end }}

{{- define "sublet.systemNamespaces" -}}
['kube-system', 'kube-public', 'kube-node-lease', '{{ .Release.Namespace }}']
{{- end }}
