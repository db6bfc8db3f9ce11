// Validates a JSON list of KEDA's and the Prometheus operator's objects from standard input against their schemas.
import { readFileSync } from "node:fs";
import { ScaledObject } from "@kubernetes-models/keda/keda.sh/v1alpha1";
import { PodMonitor } from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";

const KINDS = { ScaledObject, PodMonitor };
for (const document of JSON.parse(readFileSync(0, "utf8"))) {
  new KINDS[document.kind](document).validate();
  console.log(document.kind);
}
