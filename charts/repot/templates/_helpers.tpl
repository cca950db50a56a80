{{- define "repot.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if .Values.nameOverride -}}
{{- printf "%s-%s" .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels that select the Pods of a component: (list . "worker") */ -}}
{{- define "repot.selector" -}}
app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "repot.labels" -}}
{{ include "repot.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ printf "%s-%s" (index . 0).Chart.Name (index . 0).Chart.Version }}
{{- end -}}

{{- /* The same for several components: (list . (list "worker" "worker-target")) */ -}}
{{- define "repot.anyOf" -}}
matchLabels:
  app.kubernetes.io/name: {{ (index . 0).Chart.Name }}
  app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
matchExpressions:
  - key: app.kubernetes.io/component
    operator: In
    values: {{ index . 1 | toJson }}
{{- end -}}

{{- define "repot.secret" -}}
{{- .Values.secret.existing | default (include "repot.fullname" .) -}}
{{- end -}}

{{- /* After a rollout a Secret of one's own is left, and names the source as the target's side: no Pod reads it then. */ -}}
{{- define "repot.rolloutSecret" -}}
{{- ternary .Values.rollout.secret.existing "" .Values.rollout.enabled | default (printf "%s-rollout" (include "repot.fullname" .)) -}}
{{- end -}}

{{- /* A change of a Secret that the chart writes starts new Pods. */ -}}
{{- define "repot.checksum" -}}
checksum/secret: {{ printf "%s%s" (toJson .Values.secret) (ternary (toJson (list .Values.rollout.name .Values.rollout.secret)) "" .Values.rollout.enabled) | sha256sum }}
{{- end -}}

{{- /* What every Pod has. */ -}}
{{- define "repot.pod" -}}
automountServiceAccountToken: false
# variables like WORKER_PORT, which a Service of the release's name would add, are not settings
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  # the user of the image
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end -}}

{{- /* What every container has. */ -}}
{{- define "repot.container" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "repot.env" -}}
- {name: WORKER_APP, value: {{ .Values.app | quote }}}
- {name: WORKER_VISIBILITY_TIMEOUT, value: {{ .Values.visibilityTimeout | int64 | quote }}}
- {name: CELERY_QUEUE_NAMES, value: {{ .Values.queues | quote }}}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* (list . true): the rollout's Secret may be missing */ -}}
{{- define "repot.envFrom" -}}
{{- $root := index . 0 -}}
- secretRef: {name: {{ include "repot.secret" $root }}}
{{- with $root.Values.envFrom }}
{{ toYaml . }}
{{- end }}
{{- if index . 1 }}
- secretRef: {name: {{ include "repot.rolloutSecret" $root }}, optional: true}
{{- else }}
- secretRef: {name: {{ include "repot.rolloutSecret" $root }}}
{{- end }}
{{- end -}}

{{- /* The Pod of a worker and its sidecar: (list . "worker") or (list . "worker-target") */ -}}
{{- define "repot.workerPod" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $worker := $root.Values.worker -}}
metadata:
  labels:
    {{- include "repot.labels" . | nindent 4 }}
    {{- with $worker.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- include "repot.checksum" $root | nindent 4 }}
    {{- with $worker.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  # as long as the longest task, and a little for supervisord: then SIGKILL follows, in the middle of a task
  terminationGracePeriodSeconds: {{ $worker.terminationGracePeriodSeconds | default (add ($root.Values.visibilityTimeout | int64) 30) | int64 }}
  {{- include "repot.pod" $root | nindent 2 }}
  containers:
    - name: worker
      {{- include "repot.container" $root | nindent 6 }}
      envFrom:
        {{- include "repot.envFrom" (list $root (eq $component "worker")) | nindent 8 }}
      env:
        {{- if eq $component "worker-target" }}
        - {name: WORKER_ROLLOUT_SIDE, value: "target"}
        {{- end }}
        {{- include "repot.env" $root | nindent 8 }}
        - {name: CELERY_WORKER_AUTOSCALE, value: {{ $worker.autoscale | quote }}}
        # the kubelet and Prometheus connect from outside the pod; they get no details, which are for loopback only
        - {name: HEALTHCHECK_HOST, value: "0.0.0.0"}
        # of its own: tasks may fill /tmp
        - {name: WORKER_STATUS_DIR, value: "/run/repot/status"}
      ports:
        - {name: health, containerPort: 9000}
      startupProbe:
        {{- toYaml $worker.startupProbe | nindent 8 }}
      livenessProbe:
        {{- toYaml $worker.livenessProbe | nindent 8 }}
      readinessProbe:
        {{- toYaml $worker.readinessProbe | nindent 8 }}
      resources:
        {{- toYaml $worker.resources | nindent 8 }}
      volumeMounts:
        # supervisord's socket, and temporary files of tasks
        - {name: tmp, mountPath: /tmp}
        - {name: status, mountPath: /run/repot}
  volumes:
    - name: tmp
      emptyDir: {medium: Memory, sizeLimit: {{ $worker.tmpSize }}}
    - name: status
      # in memory: a disk that hangs must not block the status file
      emptyDir: {medium: Memory, sizeLimit: 8Mi}
  {{- range $name := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" }}
  {{- with index $worker $name }}
  {{ $name }}: {{ toJson . }}
  {{- end }}
  {{- end }}
{{- end -}}

{{- /* The Pod of the controller; its content is a part of the Job's name, for a Job cannot be changed. */ -}}
{{- define "repot.controllerPod" -}}
{{- $controller := .Values.rollout.controller -}}
metadata:
  labels:
    {{- include "repot.labels" (list . "rollout") | nindent 4 }}
  annotations:
    {{- include "repot.checksum" . | nindent 4 }}
spec:
  # a failed Pod is followed by another one, as the Job's policy needs it
  restartPolicy: Never
  {{- include "repot.pod" . | nindent 2 }}
  containers:
    - name: main
      {{- include "repot.container" . | nindent 6 }}
      command: [sh, -c]
      args:
        - {{ printf "exec repot rollout start \"$WORKER_ROLLOUT\" --steps %s --bake %s%s --execute" $controller.steps $controller.bake (ternary (printf " %s" (join " " $controller.options)) "" (gt (len $controller.options) 0)) | squote }}
      envFrom:
        {{- include "repot.envFrom" (list . false) | nindent 8 }}
      env:
        {{- include "repot.env" . | nindent 8 }}
      resources:
        {{- toYaml .Values.rollout.resources | nindent 8 }}
      volumeMounts:
        - {name: tmp, mountPath: /tmp}
  volumes:
    - name: tmp
      emptyDir: {medium: Memory, sizeLimit: 16Mi}
{{- end -}}
