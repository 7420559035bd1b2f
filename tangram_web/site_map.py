"""Site map: all pages of the console. A page is added by one entry here (`dashboard.pages.ConsolePage`).

Order is the order of the navigation bar, and of URL patterns.
"""

from __future__ import annotations

from typing import Final

from tangram_web.accounts import views as accounts
from tangram_web.configuration import views as configuration
from tangram_web.dashboard.pages import READS, WRITES, Access, ConsolePage, NavigationGroup
from tangram_web.dashboard.views.action import action
from tangram_web.dashboard.views.actions import actions
from tangram_web.dashboard.views.apis import apis
from tangram_web.dashboard.views.audit import audit
from tangram_web.dashboard.views.cpu import cpu
from tangram_web.dashboard.views.decisions import decisions
from tangram_web.dashboard.views.entry import enter
from tangram_web.dashboard.views.export import export
from tangram_web.dashboard.views.glossary import glossary
from tangram_web.dashboard.views.gpu import gpu, gpu_past
from tangram_web.dashboard.views.history import history
from tangram_web.dashboard.views.overview import overview
from tangram_web.dashboard.views.queues import queues
from tangram_web.dashboard.views.task import task
from tangram_web.dashboard.views.tasks import tasks
from tangram_web.dashboard.views.trace import (
    action_trace,
    trajectory_trace,
    viewer,
    window_trace,
)
from tangram_web.dashboard.views.trajectories import trajectories
from tangram_web.dashboard.views.trajectory import trajectory
from tangram_web.dashboard.views.workers import workers
from tangram_web.fleets import views as fleets
from tangram_web.operations import views as operations
from tangram_web.rollouts import views as rollouts
from tangram_web.simulations import views as simulations
from tangram_web.webhooks import views as webhooks

BOTH: Final = (*READS, *WRITES)

MONITOR: Final = [
    ConsolePage(name="dashboard:overview", path="", title="Overview", key="o", group=NavigationGroup.MONITOR,
         access=Access.SIGHT, view=overview, template="dashboard/overview.html"),
    ConsolePage(name="dashboard:queues", path="queues/", title="Queues", key="q", group=NavigationGroup.MONITOR,
         access=Access.SIGHT, view=queues, template="dashboard/queues.html"),
    ConsolePage(name="dashboard:actions", path="actions/", title="Actions", key="a", group=NavigationGroup.MONITOR,
         access=Access.SIGHT, view=actions, template="dashboard/actions.html"),
    ConsolePage(name="dashboard:trajectories", path="trajectories/", title="Trajectories", key="t",
         group=NavigationGroup.MONITOR, access=Access.SIGHT, view=trajectories,
         template="dashboard/trajectories.html"),
    ConsolePage(name="rollouts:list", path="rollouts/", title="Rollouts", key="r",
         group=NavigationGroup.MONITOR, access=Access.SIGHT, view=rollouts.rollouts,
         template="rollouts/list.html"),
    ConsolePage(name="fleets:list", path="fleets/", title="Fleets", key="f", group=NavigationGroup.MONITOR,
         access=Access.SIGHT, view=fleets.fleets, template="fleets/list.html"),
    ConsolePage(name="dashboard:tasks", path="tasks/", title="Tasks", key="k", group=NavigationGroup.MONITOR,
         access=Access.SIGHT, view=tasks, template="dashboard/tasks.html"),
    ConsolePage(name="dashboard:cpu", path="cpu/", title="CPU", key="c", group=NavigationGroup.MONITOR,
         access=Access.SIGHT, view=cpu, template="dashboard/map.html"),
    ConsolePage(name="dashboard:gpu", path="gpu/", title="GPU", key="u", group=NavigationGroup.MONITOR,
         access=Access.SIGHT, view=gpu, template="dashboard/map.html"),
    ConsolePage(name="dashboard:apis", path="apis/", title="APIs", key="p", group=NavigationGroup.MONITOR,
         access=Access.SIGHT, view=apis, template="dashboard/apis.html"),
    ConsolePage(name="dashboard:decisions", path="decisions/", title="Decisions", key="d",
         group=NavigationGroup.MONITOR, access=Access.ALL_PROJECTS, view=decisions,
         template="dashboard/decisions.html"),
    ConsolePage(name="dashboard:workers", path="workers/", title="Workers", key="w",
         group=NavigationGroup.MONITOR, access=Access.ALL_PROJECTS, view=workers,
         template="dashboard/workers.html"),
]  # fmt: skip

MANAGE: Final = [
    ConsolePage(name="operations:operate", path="operate/", title="Operate", group=NavigationGroup.MANAGE,
         access=Access.ALL_PROJECTS, view=operations.operate, template="operations/operate.html"),
    ConsolePage(name="configuration:overview", path="configuration/", title="Configuration",
         group=NavigationGroup.MANAGE, access=Access.SIGHT, view=configuration.overview,
         template="configuration/overview.html"),
    ConsolePage(name="dashboard:audit", path="audit/", title="Audit", group=NavigationGroup.MANAGE,
         access=Access.SIGHT, view=audit, template="dashboard/audit.html"),
    ConsolePage(name="simulations:list", path="simulate/", title="Simulate", group=NavigationGroup.MANAGE,
         access=Access.MEMBERS, view=simulations.simulations, methods=BOTH),
    ConsolePage(name="webhooks:list", path="webhooks/", title="Webhooks", group=NavigationGroup.MANAGE,
         access=Access.MEMBERS, view=webhooks.endpoints, methods=BOTH),
    ConsolePage(name="accounts:members", path="people/", title="People", group=NavigationGroup.MANAGE,
         access=Access.MEMBERS, view=accounts.members, methods=BOTH),
    ConsolePage(name="dashboard:glossary", path="glossary/", title="Glossary",
         group=NavigationGroup.MANAGE, access=Access.SIGNED_IN, view=glossary,
         template="dashboard/glossary.html"),
]  # fmt: skip

#: Pages of one object, and steps of a form: other pages link to them.
DETAILS: Final = [
    ConsolePage(name="dashboard:action", path="actions/<str:action_id>/", section="dashboard:actions",
         access=Access.SIGHT, view=action, template="dashboard/action.html"),
    ConsolePage(name="dashboard:trajectory", path="trajectories/<path:trajectory_key>/",
         section="dashboard:trajectories", access=Access.SIGHT, view=trajectory,
         template="dashboard/trajectory.html"),
    ConsolePage(name="dashboard:task", path="tasks/<path:task_key>/", section="dashboard:tasks",
         access=Access.SIGHT, view=task, template="dashboard/task.html"),
    ConsolePage(name="rollouts:groups", path="rollouts/groups/", title="Groups", section="rollouts:list",
         access=Access.SIGHT, view=rollouts.groups, template="rollouts/groups.html"),
    ConsolePage(name="rollouts:backends", path="rollouts/backends/", title="Backends",
         section="rollouts:list", access=Access.SIGHT, view=rollouts.backends,
         template="rollouts/backends.html"),
    ConsolePage(name="rollouts:one", path="rollouts/<str:rollout_id>/", section="rollouts:list",
         access=Access.SIGHT, view=rollouts.rollout, template="rollouts/one.html"),
    ConsolePage(name="fleets:one", path="fleets/<str:fleet>/", section="fleets:list",
         access=Access.SIGHT, view=fleets.fleet, template="fleets/one.html"),
    ConsolePage(name="dashboard:trace", path="trace/", title="Trace", section="dashboard:actions",
         access=Access.SIGHT, view=viewer, template="dashboard/trace.html", query="range=60"),
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
    ConsolePage(name="dashboard:history", path="history.json", access=Access.SIGHT, view=history),
    ConsolePage(name="dashboard:export", path="export/<str:name>.<str:form>", access=Access.SIGHT,
         view=export),
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
    ConsolePage(name="simulations:result", path="simulate/<slug:simulation_id>/result.json",
         access=Access.MEMBERS, view=simulations.result),
]  # fmt: skip

#: Buttons: changes that answer with a redirection.
BUTTONS: Final = [
    ConsolePage(name=name, path=path, access=access, view=view, methods=WRITES)
    for name, path, access, view in (
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
        ("accounts:end", "people/sessions/end", Access.SIGNED_IN, accounts.end),
    )
]  # fmt: skip

PAGES: list[ConsolePage] = [*MONITOR, *MANAGE, *DETAILS, *DATA, *BUTTONS]
