/**
 * Pages that only have the common head, and pictures of what the server drew.
 * @module
 */

import "../lib/chrome.js";
import { offerDrawn } from "../lib/picture.js";

offerDrawn(document);
