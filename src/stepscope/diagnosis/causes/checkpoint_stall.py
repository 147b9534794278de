from stepscope.diagnosis.cause import Case, Cause, Detection, idle_figure
_ID="checkpoint_stall"
def detect(case):
    e=case.explanation
    if not len(e.stalls): return None
    t=case.idle_ns(_ID)+e.stalls.copy_ns.sum()/e.n_steady
    return Detection(time_ns=t,direct_ns=t,says="x",do=[],figures=[idle_figure(_ID)],where=case.place(_ID))
CAUSE=Cause(id=_ID,title="C",definition="d",look_alikes="l",prediction="p",reference="r",min_share=.03,detect=detect)
