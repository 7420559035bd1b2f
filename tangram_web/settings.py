"""Django settings; the environment is read only here."""

from __future__ import annotations

import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from contract.requests import MAX_BATCH
from domain.confirmation import MOST_MILLISECONDS, Confirmation
from domain.principals import TOKEN_PREFIX
from domain.project_limits import ProjectLimits
from tangram_web.lib.env import (
    embedded_redis_url,
    env_bool,
    env_choice,
    env_database,
    env_directory,
    env_float,
    env_folders,
    env_int,
    env_list,
    env_prefixed,
    env_redis_url,
    env_secret,
    env_text,
    private_lines,
)
from tangram_web.lib.logs import FORMATS, LEVELS, logging_config
from tangram_web.problems.thresholds import thresholds_of
from tangram_web.serving.limits import WebLimits

_PROJECT = ProjectLimits()
BASE_DIR = Path(__file__).resolve().parent.parent

TANGRAM_HOME = env_directory("TANGRAM_HOME", Path("~/.local/share/tangram"))
#: Node workers of this machine reach the leader here. It is made by the leader; others go through Redis.
TANGRAM_LEADER_SOCKET = TANGRAM_HOME / "leader.sock"
TANGRAM_REDIS_URL = env_redis_url("TANGRAM_REDIS_URL", embedded_redis_url(TANGRAM_HOME / "redis"))
#: Folder with the passwords of Redis users (``manage.py redis_users``), for nodes that node groups launch; empty: they get the URL above.
TANGRAM_REDIS_USERS = env_text("TANGRAM_REDIS_USERS", "")
#: Address of Redis for nodes that join by a token, without a user; empty: that above.
TANGRAM_JOIN_REDIS_URL = env_text("TANGRAM_JOIN_REDIS_URL", "")
#: Revision of the distribution's package of the Redis server, for the judgement of its fixes.
TANGRAM_REDIS_PACKAGE = env_text("TANGRAM_REDIS_PACKAGE", "")
#: Replicas of Redis that confirm what is accepted and decided, and how long they may take.
TANGRAM_REDIS_WAIT = Confirmation(
    env_int("TANGRAM_REDIS_WAIT_REPLICAS", 0),
    env_int("TANGRAM_REDIS_WAIT_MS", 1000, minimum=1),
)
if TANGRAM_REDIS_WAIT.milliseconds > MOST_MILLISECONDS:
    raise ImproperlyConfigured(
        f"TANGRAM_REDIS_WAIT_MS={TANGRAM_REDIS_WAIT.milliseconds} is above {MOST_MILLISECONDS}: replicas that need longer are too far away"
    )
TANGRAM_KEY_PREFIX = env_text("TANGRAM_KEY_PREFIX", "tangram")
#: Name by which engines tell the nodes of several installations apart.
TANGRAM_INSTALLATION = env_text("TANGRAM_INSTALLATION", TANGRAM_KEY_PREFIX)
TANGRAM_NODE = env_text("TANGRAM_NODE", socket.gethostname())
TANGRAM_NODE_POOL = env_text("TANGRAM_NODE_POOL", "default")
#: How commands are isolated: auto (a sandbox where one works), bwrap or apptainer (nothing else), or process.
TANGRAM_NODE_ISOLATION = env_text("TANGRAM_NODE_ISOLATION", "auto")
#: ``host:port`` of the node door; empty: a unix socket, for web processes of the same machine.
TANGRAM_NODE_DOOR = env_text("TANGRAM_NODE_DOOR", "")
#: ``host:port`` under which web processes reach it (default: the name of the host).
TANGRAM_NODE_DOOR_ADDRESS = env_text("TANGRAM_NODE_DOOR_ADDRESS", "")
#: A count, or a list like ``0-3``; empty: all cores that the process may use.
TANGRAM_NODE_CPUS = env_text("TANGRAM_NODE_CPUS", "")
#: A declared count; empty: what NVML finds.
TANGRAM_NODE_GPUS = env_text("TANGRAM_NODE_GPUS", "")
TANGRAM_NODE_GPU_MEMORY_BYTES = env_text("TANGRAM_NODE_GPU_MEMORY_BYTES", "")
#: A list like ``0-1``: reserved for the machine and idle containers, never granted.
TANGRAM_NODE_RESERVED_CPUS = env_text("TANGRAM_NODE_RESERVED_CPUS", "")
#: Memory of the node for environments and for GPU services; empty: see `managers.common.memory_shares`.
TANGRAM_NODE_MEMORY_BYTES = env_text("TANGRAM_NODE_MEMORY_BYTES", "")
TANGRAM_NODE_SERVICE_MEMORY_BYTES = env_text("TANGRAM_NODE_SERVICE_MEMORY_BYTES", "")
#: Limits of environments that declare none (`managers.cpu.process.driver.ProcessSettings`).
TANGRAM_ENVIRONMENT = env_prefixed("TANGRAM_ENVIRONMENT_", "environment_")
#: Floors of free disk space (`managers.common.disk_space.DiskFloors`).
TANGRAM_DISK = env_prefixed("TANGRAM_DISK_", "disk_")
TANGRAM_CPU_BACKEND = env_text("TANGRAM_CPU_BACKEND", "process")
#: Folder that all parts share, for inputs and results above 64 KiB; empty: they stay in Redis.
TANGRAM_BODIES_DIRECTORY = env_text("TANGRAM_BODIES_DIRECTORY", "")
#: Store of large objects that nodes and clients reach: ``s3://…`` or ``file://…``; empty: none.
TANGRAM_OBJECT_STORE = env_text("TANGRAM_OBJECT_STORE", "")
TANGRAM_SECRETS_DIRECTORY = env_text("TANGRAM_SECRETS_DIRECTORY", "")
#: Name of the rollout worker of this machine; each process with the role needs its own.
TANGRAM_ROLLOUT_WORKER = env_text("TANGRAM_ROLLOUT_WORKER", socket.gethostname())
#: ``host:port`` at which web processes ask its handlers; empty: a unix socket, for those of the same machine.
TANGRAM_ROLLOUT_DOOR = env_text("TANGRAM_ROLLOUT_DOOR", "")
#: ``host:port`` under which web processes reach it (default: the name of the host).
TANGRAM_ROLLOUT_DOOR_ADDRESS = env_text("TANGRAM_ROLLOUT_DOOR_ADDRESS", "")
#: ``host:port`` at which ranks of trainers pull rows of batches; ``off``: they pull them from web processes.
TANGRAM_ROLLOUT_ROWS = env_text("TANGRAM_ROLLOUT_ROWS", "127.0.0.1:0")
#: ``host:port`` under which ranks reach it (default: the host that it listens on, or the name of this one).
TANGRAM_ROLLOUT_ROWS_ADDRESS = env_text("TANGRAM_ROLLOUT_ROWS_ADDRESS", "")
#: Rollouts that it takes at once.
TANGRAM_ROLLOUT_SLOTS = env_int("TANGRAM_ROLLOUT_SLOTS", 256, minimum=1)
#: Size of all logs of rollouts above which none is accepted.
TANGRAM_ROLLOUT_LOG_BYTES = env_int("TANGRAM_ROLLOUT_LOG_BYTES", 8 * 1024**3, minimum=1)
#: Logs of finished rollouts that were not acknowledged are kept for so long.
TANGRAM_ROLLOUT_LOG_SECONDS = env_float("TANGRAM_ROLLOUT_LOG_SECONDS", 86_400.0, minimum=1.0)
#: Folders whose tokenizers rollouts may name, on the machines of rollout workers.
TANGRAM_TOKENIZERS = env_folders("TANGRAM_TOKENIZERS", [TANGRAM_HOME / "tokenizers"])
#: Makes the reader of logs for pages, which do not import the scheduler (`tangram_web.rollouts.log_reader`).
TANGRAM_ROLLOUT_LOGS = "scheduler.runtime.rollouts.log_store.rollout_logs"
#: Finished actions and trajectories are deleted after this many days; 0 keeps them.
TANGRAM_RETENTION_DAYS = env_float("TANGRAM_RETENTION_DAYS", 30.0)
#: Retention of the journal, beyond the entries that its readers still need.
TANGRAM_JOURNAL_SECONDS = env_float("TANGRAM_JOURNAL_SECONDS", 900.0)
#: Time limit of a simulation.
TANGRAM_SIMULATION_SECONDS = env_float("TANGRAM_SIMULATION_SECONDS", 300.0, minimum=1.0)
#: Allow webhooks to this machine, by plain HTTP as well: for trials.
TANGRAM_WEBHOOKS_LOOPBACK = env_bool("TANGRAM_WEBHOOKS_LOOPBACK", default=False)
#: Time limit of a webhook request.
TANGRAM_WEBHOOK_SECONDS = env_float("TANGRAM_WEBHOOK_SECONDS", 15.0, minimum=0.1)
#: Settings of the container driver (managers/cpu/containers/settings.py), as ``docker_…``.
TANGRAM_DOCKER = env_prefixed("TANGRAM_DOCKER_", "docker_")
#: Isolation ``apptainer`` (`managers.cpu.apptainer.settings`).
TANGRAM_APPTAINER = env_prefixed("TANGRAM_APPTAINER_", "apptainer_")

#: WebLimits of the web process for connections and requests, on every route.
TANGRAM_WEB_LIMITS = WebLimits(
    header_bytes=env_int("TANGRAM_WEB_HEADER_BYTES", WebLimits.header_bytes, minimum=1024),
    header_seconds=env_float("TANGRAM_WEB_HEADER_SECONDS", WebLimits.header_seconds, minimum=1.0),
    body_bytes=env_int("TANGRAM_WEB_BODY_BYTES", WebLimits.body_bytes, minimum=1024),
    bodies_bytes=env_int("TANGRAM_WEB_BODIES_BYTES", WebLimits.bodies_bytes, minimum=1024),
    body_bytes_per_second=env_float(
        "TANGRAM_WEB_BODY_BYTES_PER_SECOND", WebLimits.body_bytes_per_second
    ),
    write_seconds=env_float("TANGRAM_WEB_WRITE_SECONDS", WebLimits.write_seconds, minimum=1.0),
    connections=env_int("TANGRAM_WEB_CONNECTIONS", WebLimits.connections, minimum=1),
    connections_per_address=env_int(
        "TANGRAM_WEB_CONNECTIONS_PER_ADDRESS", WebLimits.connections_per_address, minimum=1
    ),
    # Read by uvicorn as well; its own default, this machine, is no proxy here.
    proxies=frozenset(env_list("FORWARDED_ALLOW_IPS", [])),
)

#: Limits of each project, the same in all web processes.
TANGRAM_PROJECT_LIMITS = ProjectLimits(
    queued_actions=env_int("TANGRAM_PROJECT_QUEUED_ACTIONS", _PROJECT.queued_actions, minimum=1),
    queued_bytes=env_int("TANGRAM_PROJECT_QUEUED_BYTES", _PROJECT.queued_bytes, minimum=1),
    submissions_per_second=env_float(
        "TANGRAM_PROJECT_SUBMISSIONS_PER_SECOND", _PROJECT.submissions_per_second, minimum=0.001
    ),
    # A batch counts as a whole.
    burst_actions=env_int(
        "TANGRAM_PROJECT_BURST_ACTIONS", _PROJECT.burst_actions, minimum=MAX_BATCH
    ),
)

#: Requests of a project to nodes (files, sessions, ports, live output) that are open at once, by process.
TANGRAM_PROJECT_NODE_REQUESTS = env_int("TANGRAM_PROJECT_NODE_REQUESTS", 512, minimum=1)
#: Feeds of events that a web process sends at once, and relayed responses of calls; generations of fleets are not counted.
TANGRAM_WEB_STREAMS = env_int("TANGRAM_WEB_STREAMS", 128, minimum=1)
#: Rollouts of a project that are not finished, parked ones included.
TANGRAM_PROJECT_LIVE_ROLLOUTS = env_int("TANGRAM_PROJECT_LIVE_ROLLOUTS", 20_000, minimum=1)

#: ``TANGRAM_PROBLEM_<NAME>``: see docs/problems.md.
TANGRAM_PROBLEMS = thresholds_of(env_float)

DEBUG = env_bool("TANGRAM_DEBUG", default=False)
#: The key of the installation, unless the environment has it; no backup includes it.
TANGRAM_KEY_FILE = TANGRAM_HOME / "secret_key"
#: Keys before `manage.py rotate_key`, one in each line.
TANGRAM_FORMER_KEYS_FILE = TANGRAM_HOME / "secret_key.former"
TANGRAM_KEY_IN_ENVIRONMENT = bool(env_text("TANGRAM_SECRET_KEY", ""))
SECRET_KEY = env_secret("TANGRAM_SECRET_KEY", TANGRAM_KEY_FILE)
#: Former keys, separated by commas: signatures and encrypted secrets of theirs stay valid.
SECRET_KEY_FALLBACKS = [
    *env_list("TANGRAM_SECRET_KEY_FALLBACKS", []),
    *private_lines(TANGRAM_FORMER_KEYS_FILE),
]
ALLOWED_HOSTS = env_list("TANGRAM_ALLOWED_HOSTS", ["localhost", "127.0.0.1", "[::1]"])

INSTALLED_APPS = [
    "tangram_web",
    "tangram_web.audit",
    "tangram_web.operations",
    "tangram_web.configuration",
    "tangram_web.records",
    "tangram_web.rollouts",
    "tangram_web.explorer",
    "tangram_web.fleets",
    "tangram_web.parallelism",
    "tangram_web.pools",
    "tangram_web.live",
    "tangram_web.dashboard",
    "tangram_web.accounts",
    "tangram_web.simulations",
    "tangram_web.webhooks",
    "tangram_web.problems",
    "tangram_web.compare",
    "tangram_web.reports",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "django_filters",
    "knox",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "axes",
]

MIDDLEWARE = [
    "tangram_web.lib.requests.RequestIdMiddleware",
    "tangram_web.lib.problems.ProblemMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "tangram_web.lib.static.StaticFilesMiddleware",
    "tangram_web.dashboard.middleware.ContentSecurityPolicyMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "tangram_web.accounts.middleware.SessionSeenMiddleware",
    "axes.middleware.AxesMiddleware",
    "tangram_web.dashboard.database_errors.DatabaseErrorMiddleware",
]

ROOT_URLCONF = "tangram_web.urls"
ASGI_APPLICATION = "tangram_web.asgi.application"

TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "tangram_web.dashboard.context.console",
            ]
        },
    }
]

DATABASES = {"default": env_database("DATABASE_URL", TANGRAM_HOME / "tangram.sqlite3")}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [TANGRAM_REDIS_URL], "prefix": f"{TANGRAM_KEY_PREFIX}:live"},
    }
}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "/static/"
STATICFILES_DIRS = [BASE_DIR / "frontend"]
# Files are served from the source tree: no collectstatic between a pull and a start.
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG

LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "login"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
#: Browsers use TLS only: secure cookies, and HSTS for a month.
TANGRAM_HTTPS = env_bool("TANGRAM_HTTPS", default=False)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = TANGRAM_HTTPS
SECURE_HSTS_SECONDS = 30 * 86400 if TANGRAM_HTTPS else 0
CSRF_COOKIE_SAMESITE = "Lax"
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator")
]

#: The first backend counts failures and locks; the second one checks passwords.
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
#: Failures that lock an account or an address, and the duration of the lock; counted in the database
#: for all web processes. Attempts during a lock do not extend it.
AXES_FAILURE_LIMIT = 10
AXES_COOLOFF_TIME = timedelta(minutes=5)
AXES_LOCKOUT_PARAMETERS = ["username", "ip_address"]
AXES_LOCKOUT_CALLABLE = "tangram_web.accounts.lockout.locked_out"
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = False
AXES_RESET_ON_SUCCESS = True
AXES_DISABLE_ACCESS_LOG = True
AXES_VERBOSE = False

KNOX_TOKEN_MODEL = "pools.Token"
REST_KNOX = {"TOKEN_PREFIX": TOKEN_PREFIX, "TOKEN_TTL": timedelta(days=365)}

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "tangram_web.pools.authentication.TokenAuthentication",
        "tangram_web.pools.authentication.StaffSessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["tangram_web.lib.access.HasScope"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["tangram_web.lib.parsers.StrictJsonParser"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_PAGINATION_CLASS": "tangram_web.lib.pagination.LimitedCursorPagination",
    "DEFAULT_SCHEMA_CLASS": "tangram_web.lib.schema.ProblemAutoSchema",
    "EXCEPTION_HANDLER": "drf_standardized_errors.handler.exception_handler",
    "UNAUTHENTICATED_USER": None,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
DRF_STANDARDIZED_ERRORS = {
    "EXCEPTION_HANDLER_CLASS": "tangram_web.lib.api_problems.ProblemHandler",
    "EXCEPTION_FORMATTER_CLASS": "tangram_web.lib.api_problems.ProblemFormatter",
    "NESTED_FIELD_SEPARATOR": "/",
}
SPECTACULAR_SETTINGS = {
    # Generators of clients name their package after it: not `tangram_client`, which is the SDK.
    "TITLE": "Tangram API",
    "DESCRIPTION": "Grants CPU cores, GPU chunks and API quota to the actions of agentic RL.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "tangram_web.lib.schema.add_routes",
    ],
}

LOGGING = logging_config(
    env_choice("TANGRAM_LOG_FORMAT", FORMATS),
    env_choice("TANGRAM_LOG_LEVEL", LEVELS, "INFO"),
    actions=env_bool("TANGRAM_LOG_ACTIONS", default=False),
)
