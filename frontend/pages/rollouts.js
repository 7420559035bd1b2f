/**
 * Lists of rollouts and groups: the keys of a list, and refreshed contents.
 * @module
 */

import "./actions.js";
import "./auto_refresh.js";
