"""Site map: all pages of the console. A page is added by one entry here (`dashboard.pages.ConsolePage`).

Order is the order of the side bar, and of URL patterns.
"""

from __future__ import annotations

from typing import Final

from tangram_web.accounts import views as accounts
from tangram_web.compare.views import compare_page
from tangram_web.configuration import views as configuration
from tangram_web.dashboard.pages import READS, WRITES, Access, ConsolePage, NavigationGroup
from tangram_web.dashboard.views.action import action
from tangram_web.dashboard.views.apis import apis
from tangram_web.dashboard.views.audit import audit
from tangram_web.dashboard.views.cpu import cpu
from tangram_web.dashboard.views.decisions import decisions
from tangram_web.dashboard.views.entry import enter
from tangram_web.dashboard.views.export import export
from tangram_web.dashboard.views.glossary import glossary
from tangram_web.dashboard.views.gpu import gpu, gpu_past
from tangram_web.dashboard.views.history import history
from tangram_web.dashboard.views.node_tokens import node_tokens, revoke_node_token
from tangram_web.dashboard.views.overview import overview
from tangram_web.dashboard.views.queues import queues
from tangram_web.dashboard.views.rerun import rerun
from tangram_web.dashboard.views.task import task
from tangram_web.dashboard.views.trace import (
    action_trace,
    trajectory_trace,
    viewer,
    window_trace,
)
from tangram_web.dashboard.views.trajectory import trajectory
from tangram_web.dashboard.views.workers import workers
from tangram_web.explorer import views as explorer
from tangram_web.fleets import views as fleets
from tangram_web.operations import finder
from tangram_web.operations import views as operations
from tangram_web.parallelism import views as parallelism
from tangram_web.problems import views as problems
from tangram_web.reports.views import task_report
from tangram_web.rollouts import views as rollouts
from tangram_web.rollouts.batch_page import batches
from tangram_web.simulations import views as simulations
from tangram_web.webhooks import views as webhooks

BOTH: Final = (*READS, *WRITES)

OVERVIEW_AND_WORK: Final = [
    ConsolePage(name="dashboard:overview", path="", title="Overview", key="o", icon="pulse",
         purpose="What is wrong now, what is short, and how fast actions complete.",
         group=NavigationGroup.OVERVIEW, access=Access.SIGHT, view=overview,
         template="dashboard/overview.html"),
    ConsolePage(name="dashboard:actions", path="actions/", title="Actions", key="a", icon="list",
         purpose="Find actions by what they are, where they ran and how they ended.",
         group=NavigationGroup.WORK, access=Access.SIGHT, view=explorer.actions,
         template="explorer/list.html"),
    ConsolePage(name="dashboard:trajectories", path="trajectories/", title="Trajectories", key="t",
         icon="path", purpose="Find trajectories, and open one to see where its time goes.",
         group=NavigationGroup.WORK, access=Access.SIGHT, view=explorer.trajectories,
         template="explorer/list.html"),
    ConsolePage(name="dashboard:tasks", path="tasks/", title="Tasks", key="k", icon="task",
         purpose="Steps, outcomes and cost of each run of a trainer.",
         group=NavigationGroup.WORK, access=Access.SIGHT, view=explorer.tasks,
         template="explorer/list.html"),
    ConsolePage(name="dashboard:queues", path="queues/", title="Queues", key="q", icon="clock",
         purpose="Which actions wait, for which resource, and why.",
         group=NavigationGroup.WORK, access=Access.SIGHT, view=queues, template="dashboard/queues.html"),
    ConsolePage(name="rollouts:list", path="rollouts/", title="Rollouts", key="r", icon="running",
         purpose="The stage of each rollout, and why it waits there.",
         group=NavigationGroup.WORK, access=Access.SIGHT, view=rollouts.rollouts,
         template="rollouts/list.html"),
    ConsolePage(name="rollouts:batches", path="batches/", title="Batches", key="b", icon="batch",
         purpose="Rows of finished rollouts that trainers pull, and the bytes that each rank pulled.",
         group=NavigationGroup.WORK, access=Access.SIGHT, view=batches, template="rollouts/batches.html"),
]  # fmt: skip

RESOURCES: Final = [
    ConsolePage(name="dashboard:cpu", path="cpu/", title="CPU", key="c", icon="chip",
         purpose="Which action holds each core of each node.",
         group=NavigationGroup.RESOURCES, access=Access.SIGHT, view=cpu, template="dashboard/map.html"),
    ConsolePage(name="dashboard:gpu", path="gpu/", title="GPU", key="u", icon="chip",
         purpose="Which action holds each GPU, what each card does, and which services are in GPU memory.",
         group=NavigationGroup.RESOURCES, access=Access.SIGHT, view=gpu, template="dashboard/map.html"),
    ConsolePage(name="dashboard:apis", path="apis/", title="APIs", key="p", icon="api",
         purpose="Open calls, remaining quotas and waiting actions of each API.",
         group=NavigationGroup.RESOURCES, access=Access.SIGHT, view=apis, template="dashboard/apis.html"),
    ConsolePage(name="fleets:list", path="fleets/", title="LLM fleets", key="f", icon="node",
         purpose="Workers of each language model, their load and their health.",
         group=NavigationGroup.RESOURCES, access=Access.SIGHT, view=fleets.fleets,
         template="fleets/list.html"),
    ConsolePage(name="parallelism:list", path="parallelism/", title="Parallelism", key="l", icon="bars",
         purpose="The degree of each training stage, and the measurements that chose it.",
         group=NavigationGroup.RESOURCES, access=Access.SIGHT, view=parallelism.selectors,
         template="parallelism/list.html"),
    ConsolePage(name="dashboard:workers", path="workers/", title="Nodes and parts", key="w", icon="node",
         purpose="Nodes, processes and jobs of this system, lost nodes included.",
         group=NavigationGroup.RESOURCES, access=Access.ALL_PROJECTS, view=workers,
         template="dashboard/workers.html"),
]  # fmt: skip

UNDERSTAND: Final = [
    ConsolePage(name="compare:page", path="compare/", title="Compare", key="m", icon="bars",
         purpose="Two tasks, time ranges, revisions or simulated policies side by side, with how sure the difference is.",
         group=NavigationGroup.UNDERSTAND, access=Access.SIGHT, view=compare_page,
         template="compare/compare.html"),
    ConsolePage(name="simulations:list", path="simulate/", title="Simulate", icon="bars",
         purpose="The same workload under several policies, in virtual time.",
         group=NavigationGroup.UNDERSTAND, access=Access.MEMBERS, view=simulations.simulations,
         methods=BOTH),
    ConsolePage(name="dashboard:trace", path="trace/", title="Trace", icon="pulse",
         purpose="Actions of a time range, one row for each trajectory.",
         group=NavigationGroup.UNDERSTAND, access=Access.SIGHT, view=viewer,
         template="dashboard/trace.html", query="range=60"),
    ConsolePage(name="dashboard:decisions", path="decisions/", title="Decisions", key="d", icon="fork",
         purpose="Options that policies compared, and the option that each policy chose.",
         group=NavigationGroup.UNDERSTAND, access=Access.ALL_PROJECTS, view=decisions,
         template="dashboard/decisions.html"),
]  # fmt: skip

MANAGE: Final = [
    ConsolePage(name="operations:operate", path="operate/", title="Operate", icon="gear",
         purpose="Change nodes, pools, limits and services; each verb shows its effect first.",
         group=NavigationGroup.MANAGE, access=Access.ALL_PROJECTS, view=operations.operate,
         template="operations/operate.html"),
    ConsolePage(name="configuration:overview", path="configuration/", title="Configuration", icon="file",
         purpose="The documents that are in force, and their revisions.",
         group=NavigationGroup.MANAGE, access=Access.SIGHT, view=configuration.overview,
         template="configuration/overview.html"),
    ConsolePage(name="dashboard:audit", path="audit/", title="Audit", icon="list",
         purpose="Each change: when, by which account, and what was there before.",
         group=NavigationGroup.MANAGE, access=Access.SIGHT, view=audit, template="dashboard/audit.html"),
    ConsolePage(name="webhooks:list", path="webhooks/", title="Webhooks", icon="send",
         purpose="Messages about events that this system sends to others, and their responses.",
         group=NavigationGroup.MANAGE, access=Access.MEMBERS, view=webhooks.endpoints, methods=BOTH),
    ConsolePage(name="accounts:members", path="people/", title="Members", icon="people",
         purpose="Accounts of each project and their roles.",
         group=NavigationGroup.MANAGE, access=Access.MEMBERS, view=accounts.members, methods=BOTH),
    ConsolePage(name="dashboard:glossary", path="glossary/", title="Glossary", icon="book",
         purpose="Words of the console, the API and the code, with their meanings.",
         group=NavigationGroup.MANAGE, access=Access.SIGNED_IN, view=glossary,
         template="dashboard/glossary.html"),
]  # fmt: skip

#: Pages with a place in the side bar.
NAVIGATION: Final = [*OVERVIEW_AND_WORK, *RESOURCES, *UNDERSTAND, *MANAGE]

#: Pages of one object, and steps of a form: other pages link to them.
DETAILS: Final = [
    ConsolePage(name="problems:kinds", path="problems/", title="Conditions", section="dashboard:overview",
         purpose="What is checked, when it is a problem, and what to do then.",
         access=Access.SIGHT, view=problems.kinds, template="problems/kinds.html"),
    ConsolePage(name="problems:acknowledge", path="problems/acknowledge/", title="Acknowledge a problem",
         purpose="Say that you know of a problem, and what is done about it.",
         section="dashboard:overview", access=Access.MEMBERS, view=problems.acknowledge, methods=BOTH),
    ConsolePage(name="dashboard:action", path="actions/<str:action_id>/", section="dashboard:actions",
         access=Access.SIGHT, view=action, template="dashboard/action.html"),
    ConsolePage(name="dashboard:rerun", path="actions/<str:action_id>/again/", section="dashboard:actions",
         access=Access.MEMBERS, view=rerun, methods=BOTH),
    ConsolePage(name="dashboard:trajectory", path="trajectories/<path:trajectory_key>/",
         section="dashboard:trajectories", access=Access.SIGHT, view=trajectory,
         template="dashboard/trajectory.html"),
    ConsolePage(name="dashboard:task-report", path="tasks/<path:task_key>/report/", section="dashboard:tasks",
         access=Access.SIGHT, view=task_report, template="reports/task.html"),
    ConsolePage(name="dashboard:task", path="tasks/<path:task_key>/", section="dashboard:tasks",
         access=Access.SIGHT, view=task, template="dashboard/task.html"),
    ConsolePage(name="rollouts:groups", path="rollouts/groups/", title="Groups", section="rollouts:list",
         purpose="Samples of one instance, and whether their rewards differ.",
         access=Access.SIGHT, view=rollouts.groups, template="rollouts/groups.html"),
    ConsolePage(name="rollouts:backends", path="rollouts/backends/", title="Backends",
         purpose="Servers of language models, their seats, their health and the rollouts that wait.",
         section="rollouts:list", access=Access.SIGHT, view=rollouts.backends,
         template="rollouts/backends.html"),
    ConsolePage(name="rollouts:one", path="rollouts/<str:rollout_id>/", section="rollouts:list",
         access=Access.SIGHT, view=rollouts.rollout, template="rollouts/one.html"),
    ConsolePage(name="fleets:one", path="fleets/<str:fleet>/", section="fleets:list",
         access=Access.SIGHT, view=fleets.fleet, template="fleets/one.html"),
    ConsolePage(name="parallelism:one", path="parallelism/<str:selector>/", section="parallelism:list",
         access=Access.SIGHT, view=parallelism.selector, template="parallelism/one.html"),
    ConsolePage(name="dashboard:node-tokens", path="workers/tokens/", title="Join tokens",
         purpose="Tokens by which new machines join as nodes.", section="dashboard:workers",
         access=Access.ALL_PROJECTS, view=node_tokens, methods=BOTH),
    ConsolePage(name="operations:done", path="act/done/<int:entry_id>/", section="operations:operate",
         access=Access.MEMBERS, view=operations.done, template="operations/done.html"),
    ConsolePage(name="operations:verb", path="act/<str:kind>/<str:name>/", section="operations:operate",
         access=Access.MEMBERS, view=operations.verb, methods=BOTH),
    ConsolePage(name="configuration:edit", path="configuration/edit/", section="configuration:overview",
         access=Access.MEMBERS, view=configuration.edit, methods=BOTH),
    ConsolePage(name="configuration:review", path="configuration/review/", methods=WRITES,
         section="configuration:overview", access=Access.MEMBERS, view=configuration.review),
    ConsolePage(name="configuration:revisions", path="configuration/revisions/",
         section="configuration:overview", access=Access.SIGHT,
         view=configuration.revisions, template="configuration/revisions.html"),
    ConsolePage(name="configuration:revision", path="configuration/revisions/<int:number>/",
         section="configuration:overview", access=Access.SIGHT, view=configuration.revision,
         methods=BOTH),
    ConsolePage(name="simulations:one", path="simulate/<slug:simulation_id>/",
         section="simulations:list", access=Access.MEMBERS, view=simulations.simulation),
    ConsolePage(name="webhooks:one", path="webhooks/<slug:endpoint_id>/", section="webhooks:list",
         access=Access.MEMBERS, view=webhooks.endpoint, methods=BOTH),
    ConsolePage(name="accounts:tokens", path="people/tokens/", section="accounts:members",
         access=Access.MEMBERS, view=accounts.tokens, methods=BOTH),
    ConsolePage(name="accounts:sessions", path="people/sessions/", section="accounts:members",
         access=Access.SIGNED_IN, view=accounts.sessions),
    ConsolePage(name="accounts:password", path="people/password/", section="accounts:members",
         access=Access.SIGNED_IN, view=accounts.password, methods=BOTH),
]  # fmt: skip

#: Data that pages load, files, and the link of ``tangram up``.
DATA: Final = [
    ConsolePage(name="dashboard:enter", path="enter/", access=Access.PUBLIC, view=enter),
    ConsolePage(name="operations:find", path="find.json", access=Access.SIGHT, view=finder.find,
         query="q=swe"),
    ConsolePage(name="problems:trends", path="resources.json", access=Access.SIGHT, view=problems.trends),
    ConsolePage(name="dashboard:history", path="history.json", access=Access.SIGHT, view=history),
    ConsolePage(name="dashboard:export", path="export/<str:name>.<str:form>", access=Access.SIGHT,
         view=export),
    ConsolePage(name="explorer:counts", path="explorer/<str:tab>/counts", access=Access.SIGHT,
         view=explorer.counts, template="explorer/counts.html"),
    ConsolePage(name="explorer:complete", path="explorer/<str:tab>/complete.json", access=Access.SIGHT,
         view=explorer.complete),
    ConsolePage(name="explorer:ids", path="explorer/<str:tab>/ids.json", access=Access.SIGHT,
         view=explorer.ids),
    ConsolePage(name="explorer:reasons", path="explorer/reasons.json", access=Access.SIGHT,
         view=explorer.reasons),
    ConsolePage(name="dashboard:trace-window", path="trace/window.json", access=Access.SIGHT,
         view=window_trace),
    ConsolePage(name="dashboard:trace-action", path="trace/actions/<str:action_id>.json",
         access=Access.SIGHT, view=action_trace),
    ConsolePage(name="dashboard:trace-trajectory", path="trace/trajectories/<path:trajectory_key>.json",
         access=Access.SIGHT, view=trajectory_trace),
    ConsolePage(name="rollouts:record", path="rollouts/<str:rollout_id>/records/<int:number>",
         access=Access.SIGHT, view=rollouts.record_file),
    ConsolePage(name="rollouts:artefact", path="rollouts/<str:rollout_id>/artefacts/<path:name>",
         access=Access.SIGHT, view=rollouts.artefact_file),
    ConsolePage(name="dashboard:gpu-past", path="gpu/past.json", access=Access.SIGHT, view=gpu_past),
    ConsolePage(name="operations:effect", path="act/<str:kind>/<str:name>/effect/",
         access=Access.MEMBERS, view=operations.effect),
    ConsolePage(name="simulations:result", path="simulate/<slug:simulation_id>/result.json",
         access=Access.MEMBERS, view=simulations.result),
]  # fmt: skip

#: Buttons: changes that answer with a redirection.
BUTTONS: Final = [
    ConsolePage(name=name, path=path, access=access, view=view, methods=WRITES)
    for name, path, access, view in (
        ("explorer:columns", "explorer/<str:tab>/columns", Access.SIGHT, explorer.columns),
        ("explorer:save-view", "explorer/<str:tab>/views", Access.SIGHT, explorer.save),
        ("explorer:change-view", "explorer/views/<slug:view_id>", Access.SIGHT, explorer.change_view),
        ("configuration:try", "configuration/try/", Access.MEMBERS, configuration.try_out),
        ("simulations:cancel", "simulate/<slug:simulation_id>/cancel", Access.MEMBERS,
         simulations.cancel),
        ("simulations:delete", "simulate/<slug:simulation_id>/delete", Access.MEMBERS,
         simulations.delete),
        ("webhooks:rotate", "webhooks/<slug:endpoint_id>/rotate", Access.MEMBERS, webhooks.rotate),
        ("webhooks:ping", "webhooks/<slug:endpoint_id>/ping", Access.MEMBERS, webhooks.ping),
        ("webhooks:delete", "webhooks/<slug:endpoint_id>/delete", Access.MEMBERS, webhooks.delete),
        ("webhooks:replay", "webhooks/<slug:endpoint_id>/replay/<int:delivery_id>", Access.MEMBERS,
         webhooks.replay),
        ("accounts:remove", "people/<int:membership_id>/remove", Access.MEMBERS, accounts.remove),
        ("accounts:revoke", "people/tokens/<slug:token_id>/revoke", Access.MEMBERS,
         accounts.revoke),
        ("accounts:renew", "people/tokens/<slug:token_id>/renew", Access.MEMBERS,
         accounts.renew),
        ("dashboard:revoke-node-token", "workers/tokens/<slug:token_id>/revoke", Access.ALL_PROJECTS,
         revoke_node_token),
        ("accounts:end", "people/sessions/end", Access.SIGNED_IN, accounts.end),
    )
]  # fmt: skip

PAGES: list[ConsolePage] = [*NAVIGATION, *DETAILS, *DATA, *BUTTONS]
