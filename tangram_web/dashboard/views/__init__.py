"""Pages of the console, one module each; `tangram_web.site_map` registers them."""
