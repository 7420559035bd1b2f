/**
 * Pages with the common head and pictures of charts only.
 * @module
 */

import "../lib/chrome.js";
import { offerDrawn } from "../lib/picture.js";

offerDrawn(document);
