"""Order, recomputation and early updates; the simulator [MAGIS, Serenity, Checkmate]."""
