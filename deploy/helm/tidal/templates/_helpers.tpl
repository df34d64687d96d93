{{- define "tidal.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of the objects: the release's, with the chart's unless it contains it. */}}
{{- define "tidal.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "tidal.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "tidal.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels by which pods are selected: they must not change over the life of a release. */}}
{{- define "tidal.selectorLabels" -}}
app.kubernetes.io/name: {{ include "tidal.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tidal.labels" -}}
{{ include "tidal.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Objects of the cluster have labels of their own: a selector of the other pods does not match its nodes. */}}
{{- define "tidal.clusterLabels" -}}
app.kubernetes.io/name: {{ include "tidal.name" . }}-cluster
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "tidal.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "tidal.clusterImage" -}}
{{- printf "%s:%s" .Values.cluster.image.repository (.Values.cluster.image.tag | default .Chart.AppVersion) -}}
{{- end -}}

{{- define "tidal.claim" -}}
{{- .Values.modelRepository.existingClaim | default (printf "%s-models" (include "tidal.fullname" .)) -}}
{{- end -}}

{{- define "tidal.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "tidal.securityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Where pods run, and from where images come. */}}
{{- define "tidal.scheduling" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: false
# The controller or agent finds the server by its process.
shareProcessNamespace: true
securityContext:
  {{- include "tidal.podSecurityContext" . | nindent 2 }}
{{- end -}}

{{/* What a server and its copy of the models are in pods of both kinds. */}}
{{- define "tidal.server" -}}
args:
  - serve
  - /srv/models
  - --host
  - 0.0.0.0
  - --exit-timeout
  - {{ .Values.exitTimeoutSeconds | quote }}
  - --server-restarts
  - "0"
  - --verbose
  {{- range .Values.serverArgs }}
  - {{ . | quote }}
  {{- end }}
env:
  - name: TIDAL_ADMIN_KEY
    valueFrom:
      secretKeyRef:
        name: {{ .Values.adminKeySecret.name }}
        key: {{ .Values.adminKeySecret.key }}
        optional: true
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
startupProbe:
  httpGet: {path: /ready, port: status}
  periodSeconds: 5
  failureThreshold: 120
readinessProbe:
  httpGet: {path: /ready, port: status}
  periodSeconds: 5
  failureThreshold: 3
livenessProbe:
  httpGet: {path: /live, port: status}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
securityContext:
  {{- include "tidal.securityContext" . | nindent 2 }}
volumeMounts:
  {{- include "tidal.mounts" . | nindent 2 }}
{{- end -}}

{{- define "tidal.mounts" -}}
- {name: models, mountPath: /srv/models}
- {name: state, mountPath: /run/tidal}
- {name: shared-memory, mountPath: /dev/shm}
{{- end -}}

{{- define "tidal.copy" -}}
name: models
command: [cp, --archive, --no-preserve=ownership, /published/., /srv/models/]
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "tidal.securityContext" . | nindent 2 }}
resources:
  requests: {cpu: 500m, memory: 512Mi}
  limits: {cpu: 500m, memory: 512Mi}
volumeMounts:
  - {name: published, mountPath: /published, readOnly: true}
  - {name: models, mountPath: /srv/models}
{{- end -}}

{{- define "tidal.volumes" -}}
- name: published
  persistentVolumeClaim:
    claimName: {{ include "tidal.claim" . }}
    readOnly: true
- name: models
  emptyDir: {}
- name: state
  emptyDir: {}
- name: shared-memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.sharedMemory }}
{{- end -}}
