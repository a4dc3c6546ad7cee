"""The figures of MAGIS's evaluation on our side, a command each: ``peakfold bench --figure N``."""
