/**
 * A trace, opened in place.
 * @module
 */

import "../lib/chrome.js";
import "../elements/tg-trace.js";
