/**
 * Pages that only have the common head.
 * @module
 */

import "../lib/chrome.js";
