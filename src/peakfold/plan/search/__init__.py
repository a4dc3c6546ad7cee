"""The joint search: regions, how many parts, and all else inside them [MAGIS, section 6]."""
