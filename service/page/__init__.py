"""The live page: HTML, style and modules as they lie here, without a build step."""
