"""Serving plans as Kubernetes manifests, SkyPilot services and scripts of two pools."""

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
import yaml
from tests.planner.export.test_serving import a_plan

from shardwise.apps.cli.serve import serve
from shardwise.errors import BadRequest
from shardwise.planner.export.deploy.pods import following
from shardwise.planner.export.own_server import OWN_SERVER
from shardwise.planner.export.serving import export_serve, given_fields, parse_serve
from shardwise.plans import ServeDtypes
from shardwise.plans.files import plan_from
from shardwise.plans.serve import PrefillServer, ServeScheduling, Workload

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
from called import calls
from exports_unsaid import lost_by_a_server

LOAD = Workload(rate=4.0, ttft=2.0, tpot=0.03)
WIDE = PrefillServer(slice="h100:4", mesh={"tensor": 4}, box=(4,))


def manifests(*made):
    """The objects of a plan by kind and name, and its text."""
    text = export_serve(*made, "k8s")
    found = {(d["kind"], d["metadata"]["name"]): d for d in yaml.safe_load_all(text)}
    return found, text


def server(workload):
    """The container of a Deployment's server."""
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return found


def words(container):
    return [*container["command"], *container["args"]]


DEPLOYED = ("vllm", "sglang")


@pytest.mark.parametrize("engine", DEPLOYED)
def test_one_server_is_a_deployment_behind_a_service(engine):
    plan, cfg, piece = a_plan(engine=engine, workload=LOAD)
    found, text = manifests(plan, cfg, piece)
    assert set(found) == {
        ("ConfigMap", "dense"),
        ("Deployment", "dense-serve"),
        ("Service", "dense"),
        ("Job", "dense-bench"),
    }
    main = found["Deployment", "dense-serve"]
    assert main["spec"]["replicas"] == 1
    assert server(main)["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    assert found["Service", "dense"]["spec"]["selector"] == {"app": "dense"}
    flags = {
        "vllm": {"--tensor-parallel-size=8", "--max-num-seqs=64", "--port=8000"},
        "sglang": {"--tp-size=8", "--max-running-requests=64", "--port=8000"},
    }
    assert flags[engine] <= set(words(server(main)))
    assert parse_serve(text, "k8s") == plan


def test_the_check_asks_the_load_of_the_plan():
    found, _ = manifests(*a_plan(engine="vllm", workload=LOAD))
    job = found["Job", "dense-bench"]["spec"]
    assert job["suspend"]
    asked = words(server({"spec": job}))
    assert asked[:3] == ["vllm", "bench", "serve"]
    assert {"--random-input-len=2048", "--random-output-len=256", "--request-rate=4.0"} <= set(
        asked
    )
    assert asked[asked.index("--goodput") :] == ["--goodput", "ttft:2000", "tpot:30"]


def test_several_servers_stand_behind_llm_d():
    found, text = manifests(*a_plan(engine="vllm", replicas=3))
    pool = found["InferencePool", "dense"]["spec"]
    labels = found["Deployment", "dense-serve"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment", "dense-serve"]["spec"]["replicas"] == 3
    assert pool["selector"]["matchLabels"].items() <= labels.items()
    assert pool["endpointPickerRef"]["name"] == "dense-epp"
    assert found["HTTPRoute", "dense"]["spec"]["rules"][0]["backendRefs"][0]["name"] == "dense"
    config = yaml.safe_load(found["ConfigMap", "dense-epp"]["data"]["plugins.yaml"])
    assert {"type": "single-profile-handler"} in config["plugins"]
    assert parse_serve(text, "k8s").replicas == 3


@pytest.mark.parametrize("prefill", [None, WIDE])
def test_two_pools(prefill):
    plan, cfg, piece = a_plan(engine="vllm", replicas=2, prefill_replicas=3, prefill=prefill)
    found, text = manifests(plan, cfg, piece)
    first, then = found["Deployment", "dense-prefill"], found["Deployment", "dense-decode"]
    assert (first["spec"]["replicas"], then["spec"]["replicas"]) == (3, 2)
    tensor = 8 if prefill is None else 4
    assert f"--tensor-parallel-size={tensor}" in words(server(first))
    assert server(first)["resources"]["limits"] == {"nvidia.com/gpu": str(tensor)}
    assert "--tensor-parallel-size=8" in words(server(then))
    (sidecar,) = then["spec"]["template"]["spec"]["initContainers"]
    inner = {"--vllm-port=8200", "--port=8200"}
    assert inner <= {*sidecar["args"], *words(server(then))}
    roles = [d["spec"]["template"]["metadata"]["labels"]["llm-d.ai/role"] for d in (first, then)]
    assert roles == ["prefill", "decode"]
    config = yaml.safe_load(found["ConfigMap", "dense-epp"]["data"]["plugins.yaml"])
    assert [profile["name"] for profile in config["schedulingProfiles"]] == ["prefill", "decode"]
    assert parse_serve(text, "k8s") == plan


def test_a_server_of_several_hosts_is_a_leader_and_workers():
    plan, cfg, piece = a_plan("moe", "2*h100:8", {"expert": 8}, engine="vllm")
    plan = replace(plan, mesh={"tensor": 16}, batch=64)
    found, text = manifests(plan, cfg, piece)
    spec = found["LeaderWorkerSet", "moe-serve"]["spec"]["leaderWorkerTemplate"]
    assert spec["size"] == 2
    first, other = (
        words(server({"spec": {"template": spec[name]}}))
        for name in ("leaderTemplate", "workerTemplate")
    )
    both = {"--nnodes=2", "--master-addr=$(LWS_LEADER_ADDRESS)", "--tensor-parallel-size=16"}
    assert both <= set(first) & set(other)
    assert {"--node-rank=0"} <= set(first) - set(other)
    assert {"--node-rank=$(LWS_WORKER_INDEX)", "--headless"} <= set(other) - set(first)
    assert "metadata" in spec["leaderTemplate"]
    assert "labels" not in spec["workerTemplate"]["metadata"]  # takes no requests
    assert parse_serve(text, "k8s") == plan


def test_tpus_of_several_hosts_are_joined_by_ray():
    plan, cfg, piece = a_plan("moe", "v5e:4x4", {"expert": 16}, engine="vllm", batch=64)
    found, text = manifests(plan, cfg, piece)
    spec = found["LeaderWorkerSet", "moe-serve"]["spec"]["leaderWorkerTemplate"]
    assert spec["size"] == 4
    pod = spec["leaderTemplate"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    (main,) = pod["containers"]
    assert main["resources"]["limits"] == {"google.com/tpu": "4"}
    given = {"--tensor-parallel-size=16", "--enable-expert-parallel", "--max-num-seqs=64"}
    assert given <= set(main["args"])  # limits of all ranks together
    named = {v["name"]: v.get("value") for v in main["env"]}
    assert (named["TPU_MULTIHOST_BACKEND"], named["NEW_MODEL_DESIGN"]) == ("ray", "1")
    assert parse_serve(text, "k8s") == plan


def held_plan(found):
    """The plan that the ConfigMap brings."""
    return yaml.safe_load(found["ConfigMap", "dense"]["data"]["plan.yaml"])


PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def test_our_server_reads_its_plan():
    """Whatever a plan says is in the file, flags only say where to listen; answers that run have
    the server's time to drain, the key comes from a Secret."""
    odd = ServeScheduling(swap=True, max_waiting=5, order="aged")
    plan, cfg, piece = a_plan(engine="ideal", workload=LOAD, replicas=3, scheduling=odd)
    found, text = manifests(plan, cfg, piece)
    assert plan_from(held_plan(found), "k8s") == replace(plan, replicas=1)
    assert parse_serve(text, "k8s") == plan
    main = found["Deployment", "dense-serve"]["spec"]
    assert main["replicas"] == 3
    pod = main["template"]["spec"]
    run = server({"spec": main})
    assert words(run)[:4] == ["shardwise", "serve", "/plan/plan.yaml", "--model=/checkpoint"]
    drain = next(int(w.partition("=")[2]) for w in words(run) if w.startswith("--drain-time="))
    leaving = int(run["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > drain + leaving
    assert run["livenessProbe"]["httpGet"]["path"] == "/health"
    key, cache = run["env"]
    assert key["name"] == "SHARDWISE_API_KEY"
    assert "secretKeyRef" in key["valueFrom"]
    mounted = {m["mountPath"]: m["name"] for m in run["volumeMounts"]}
    volumes = {v["name"]: v for v in pod["volumes"]}
    assert cache == {"name": "XDG_CACHE_HOME", "value": "/cache"}
    assert volumes[mounted["/cache"]] == {"name": "cache", "emptyDir": {}}
    assert set(run["resources"]["requests"]) == {"cpu", "memory"}
    assert all(run[probe]["timeoutSeconds"] == 5 for probe in PROBES)
    assert volumes[mounted["/plan"]]["configMap"] == {"name": "dense"}
    assert "persistentVolumeClaim" in volumes[mounted["/checkpoint"]]
    assert main["template"]["metadata"]["annotations"]["prometheus.io/port"] == "8000"
    assert "InferencePool" in {kind for kind, _ in found}  # by vLLM's names of metrics


def referenced(value):
    """The keys of ConfigMaps that a manifest's variables are read from."""
    if isinstance(value, dict):
        own = [value["configMapKeyRef"]] if "configMapKeyRef" in value else []
        return own + [ref for item in value.values() for ref in referenced(item)]
    return [ref for item in value for ref in referenced(item)] if isinstance(value, list) else []


@pytest.mark.parametrize("engine", ["vllm", "ideal"])
def test_what_variables_are_read_from_is_there(engine):
    found, _ = manifests(*a_plan(engine=engine, workload=LOAD, replicas=2))
    asked = referenced(list(found.values()))
    assert asked
    for ref in asked:
        assert ref["key"] in found["ConfigMap", ref["name"]]["data"]


def test_our_server_over_the_hosts_of_a_slice():
    plan, cfg, piece = a_plan("moe", "v5e:4x4", {"expert": 16}, engine="ideal", batch=64)
    found, text = manifests(plan, cfg, piece)
    spec = found["LeaderWorkerSet", "moe-serve"]["spec"]["leaderWorkerTemplate"]
    first, other = (
        words(server({"spec": {"template": spec[name]}}))
        for name in ("leaderTemplate", "workerTemplate")
    )
    both = {"--coordinator=$(LWS_LEADER_ADDRESS):8476", "--processes=4"}
    assert both <= set(first) & set(other)
    assert "--process=0" in first
    assert "--process=$(LWS_WORKER_INDEX)" in other
    assert first[0] == "shardwise"  # not joined by Ray
    worker = server({"spec": {"template": spec["workerTemplate"]}})
    for probe in PROBES:
        assert worker[probe]["exec"]["command"] == following(8477)
        assert worker[probe]["timeoutSeconds"] == 5
    assert parse_serve(text, "k8s") == plan


def test_a_host_that_follows_is_told_by_its_connection():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        command = [word for word in following(port) if Path(word).exists() or "/" not in word]
        assert subprocess.run(command).returncode == 1
        with socket.create_connection(("127.0.0.1", port)):
            assert subprocess.run(command).returncode == 0
        assert subprocess.run(command).returncode == 1


def test_our_server_hands_no_prompts_between_pods():
    made = a_plan(engine="ideal", prefill_replicas=1)
    with pytest.raises(BadRequest, match=r"prefill_replicas .* --pools one"):
        export_serve(*made, "k8s")


def test_the_flags_of_our_server_are_its_own():
    """Every word of the command is one that `shardwise serve` takes."""
    for mesh, where in (({"tensor": 8}, "h100:8"), ({"expert": 16}, "v5e:4x4")):
        made = a_plan("moe", where, mesh, engine="ideal", batch=64)
        found, _ = manifests(*made)
        kind = next(d for (k, _), d in found.items() if k in ("Deployment", "LeaderWorkerSet"))
        pod = kind["spec"].get("template") or kind["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
        args = server({"spec": {"template": pod}})["args"]
        with click.Context(serve) as context:
            serve.parse_args(context, args[1:])
        assert context.params["host"] == "0.0.0.0"


CONTAINER = Path(__file__).parents[3] / "Containerfile"


def test_the_image_starts_what_the_manifests_name():
    """Its instructions, continued lines joined: the command of the pods is its entry point, which
    is no shell, so that a signal reaches the server; it is not root's and holds no checkpoint."""
    text = CONTAINER.read_text(encoding="utf-8").replace("\\\n", " ")
    rows = [line.partition(" ")[::2] for line in text.splitlines() if line[:1].isupper()]
    said = dict(rows)
    assert json.loads(said["ENTRYPOINT"]) == OWN_SERVER.command(None, "")[:1]
    args = json.loads(said["CMD"])
    assert args[0] == "serve"
    with click.Context(serve) as context:
        serve.parse_args(context, args[1:])
    assert said["USER"].partition(":")[0] not in ("", "0", "root")
    assert "/health" in said["HEALTHCHECK"]
    copied = [value for name, value in rows if name in ("COPY", "ADD")]
    assert copied == ["pyproject.toml README.md LICENSE ./", "src src"]
    whole = (CONTAINER.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f"jax[tpu]=={dict(v.split('=') for n, v in rows if n == 'ARG')['JAX']}" in whole


def test_a_service_of_skypilot():
    plan, cfg, piece = a_plan(engine="vllm", replicas=3, workload=LOAD)
    text = export_serve(plan, cfg, piece, "skypilot")
    service = yaml.safe_load(text)
    assert service["service"]["replicas"] == 3
    assert service["service"]["load_balancing_policy"] == "least_load"
    assert service["resources"] == {"accelerators": "H100:8", "ports": 8000}
    assert "--tensor-parallel-size=8" in service["run"]
    assert parse_serve(text, "skypilot") == plan
    (check,) = [line for line in text.splitlines() if "vllm bench serve" in line]
    assert "--request-rate=4.0" in check


@pytest.mark.parametrize("target", DEPLOYED)
def test_a_script_starts_both_pools_the_router_and_the_check(target):
    """As bash calls them."""
    made = a_plan(engine=target, replicas=2, prefill_replicas=3, prefill=WIDE, workload=LOAD)
    text = export_serve(*made, target)
    found = calls(text)
    assert list(found) == ["prefill", "decode", "router", "bench"]
    tensor = {"vllm": "--tensor-parallel-size", "sglang": "--tp-size"}[target]
    assert f"{tensor}=4" in found["prefill"]
    assert f"{tensor}=8" in found["decode"]
    flag = {"vllm": "--vllm-pd-disaggregation", "sglang": "--pd-disaggregation"}[target]
    assert {flag, "--prefill", "--decode", "http://c:8000"} <= set(found["router"])
    assert found["bench"][:3] == ["vllm", "bench", "serve"]
    assert parse_serve(text, target) == made[0]


def test_every_script_is_one_that_bash_reads():
    made = a_plan("moe", "2*h100:8", {"expert": 8}, engine="vllm", replicas=2)
    plan = replace(made[0], mesh={"tensor": 16})
    text = export_serve(plan, *made[1:], "vllm")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    assert calls(text)["serve"][-1] == "--headless"  # of any host but the first


@pytest.mark.parametrize("target", ["vllm", "sglang", "k8s", "skypilot"])
def test_all_obstacles_stand_in_one_refusal_each_with_its_change(target):
    odd = ServeScheduling(swap=True, max_waiting=5, order="aged")
    plan, cfg, piece = a_plan(engine="vllm", scheduling=odd)
    with pytest.raises(BadRequest) as caught:
        export_serve(plan, cfg, piece, target)
    head, *lines = str(caught.value).splitlines()
    assert head.startswith(f"{target} cannot express 3 choices of this plan")
    fields = ("scheduling.swap", "scheduling.max_waiting", "scheduling.order")
    assert [line.split()[0] for line in lines] == list(fields)
    assert all("; set " in line for line in lines)


@pytest.mark.parametrize(
    ("target", "choices", "said"),
    [
        (
            "skypilot",
            {"engine": "ideal"},
            "engine ideal: it starts vLLM or SGLang; plan with --for",
        ),
        ("skypilot", {"prefill_replicas": 2}, "prefill_replicas 2: .*; plan with --pools one"),
        ("k8s", {"replicas": 2, "routing": "bounded_hash"}, "routing bounded_hash: .* set routing"),
        ("k8s", {"engine": "sglang", "slice_text": "v5e:2x4"}, "no SGLang is published for TPU"),
        ("skypilot", {"slice_text": "v5e:4x4", "mesh": {"tensor": 16}}, "slice v5e:4x4: .* k8s"),
        ("k8s", {"slice_text": "mi300x:8"}, "slice mi300x:8: it supports .*; plan on"),
    ],
)
def test_what_cannot_be_deployed_is_refused_with_what_can(target, choices, said):
    made = a_plan(**({"engine": "vllm"} | choices))
    with pytest.raises(BadRequest, match=said):
        export_serve(*made, target)


def test_a_plan_priced_for_another_server_says_so():
    text = export_serve(*a_plan(engine="vllm"), "sglang")
    assert '# not expressed: engine "vllm": its times are those of vLLM' in text
    assert "engine" not in export_serve(*a_plan(engine="sglang"), "sglang")


def test_flags_of_vllm_become_a_plan_and_what_is_missing_is_asked_for():
    """As somebody else wrote them, a flag and its value as two words."""
    stored = ServeDtypes(matmuls="stored")
    plan, cfg, piece = a_plan(engine="vllm", dtypes=stored)
    text = "vllm serve some/model --tensor-parallel-size 8 --max-num-seqs 64 --block-size 64"
    text += " --max-num-batched-tokens 8192 --gpu-memory-utilization 0.9"
    given = given_fields("dense", cfg, piece, (2048, 256))
    assert lost_by_a_server(plan, parse_serve(text, "vllm", given)) == {}
    asked = {"model": "--model", "slice": "--on", "input_length": "--input"}
    for field, option in asked.items():
        rest = {key: value for key, value in given.items() if key != field}
        with pytest.raises(BadRequest, match=f"does not give the {field}; give it with {option}"):
            parse_serve(text, "vllm", rest)


def test_edited_manifests_count():
    _, text = manifests(*a_plan(engine="vllm", replicas=3))
    edited = text.replace("replicas: 3", "replicas: 5").replace("seqs=64", "seqs=32")
    edited = edited.replace("gpu: '8'", "gpu: '4'").replace("size=8", "size=4")
    read = parse_serve(edited, "k8s")
    assert (read.replicas, read.batch, read.slice, read.mesh) == (5, 32, "h100:4", {"tensor": 4})
    with pytest.raises(BadRequest, match="k8s: no pod has a server"):
        parse_serve("kind: Service\nmetadata: {}\n", "k8s")
    with pytest.raises(BadRequest, match="k8s: the Deployment has no pod with a command"):
        parse_serve("kind: Deployment\nspec: {}\n", "k8s")
