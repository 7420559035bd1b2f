/**
 * The page of an action that has ended.
 * @module
 */

import "./basic.js";
import "../elements/tg-output.js";
