//! The student's step, and the teacher's.

use std::collections::HashMap;

use burn::Tensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Gradients;
use lacuna_models::ops::{Sgd, Update, ema_step, sgd_step};

/// SGD with momentum over all trained parameters of a module, in their memory.
#[derive(Debug, Default)]
pub struct Optimizer {
    velocities: HashMap<ParamId, Tensor<1>>,
}

impl Optimizer {
    /// Parameters that the loss does not depend on stay as they are.
    pub fn step<M: Module>(&mut self, module: M, gradients: Gradients, sgd: Sgd) -> M {
        let velocities = &mut self.velocities;
        let mut take = TakeTrained { gradients, velocities, ids: Vec::new(), updates: Vec::new() };
        let module = module.map(&mut take);
        let TakeTrained { ids, updates, .. } = take;
        let (parameters, velocities): (Vec<_>, Vec<_>) = sgd_step(updates, sgd).into_iter().unzip();
        self.velocities.extend(ids.iter().copied().zip(velocities));
        module.map(&mut Put(ids.into_iter().zip(parameters).collect()))
    }
}

/// The teacher after the student's step: `momentum·teacher + (1 − momentum)·student` for what is trained,
/// the student's for the rest, which is statistics.
pub fn update_teacher<M: Module>(teacher: M, student: &M, momentum: f32) -> M {
    let mut values = Values(HashMap::new());
    student.visit(&mut values);
    let mut take = TakeAverages { student: values.0, ids: Vec::new(), pairs: Vec::new() };
    let teacher = teacher.map(&mut take);
    let TakeAverages { ids, pairs, .. } = take;
    teacher.map(&mut Put(ids.into_iter().zip(ema_step(pairs, momentum)).collect()))
}

/// A tensor without its graph and its shape. The parameter that held it must be consumed, so that the
/// step finds its memory free to change.
fn flat<const D: usize>(value: Tensor<D>) -> Tensor<1> {
    let len: usize = value.dims().iter().product();
    value.without_autodiff().reshape([len])
}

/// What stands in the place of a parameter that was taken out: its shape, over a single number.
fn hollow<const D: usize>(value: &Tensor<D>) -> Tensor<D> {
    Tensor::<D>::zeros([1; D], &value.device()).expand(value.dims())
}

/// Takes out trained parameters with their gradients.
struct TakeTrained<'a> {
    gradients: Gradients,
    velocities: &'a mut HashMap<ParamId, Tensor<1>>,
    ids: Vec<ParamId>,
    updates: Vec<Update>,
}

impl ModuleMapper for TakeTrained<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, value, mapper) = param.consume();
        let Some(gradient) = value.grad_remove(&mut self.gradients) else {
            return Param::from_mapped_value(id, value, mapper);
        };
        let hollow = hollow(&value);
        let (parameter, gradient) = (flat(value), flat(gradient));
        let velocity = self.velocities.remove(&id).unwrap_or_else(|| parameter.zeros_like());
        self.ids.push(id);
        self.updates.push(Update { parameter, gradient, velocity });
        Param::from_mapped_value(id, hollow, mapper)
    }
}

/// The values of a module, and whether each is trained.
struct Values(HashMap<ParamId, (Tensor<1>, bool)>);

impl ModuleVisitor for Values {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let trained = value.is_require_grad();
        self.0.insert(param.id, (flat(value), trained));
    }
}

/// Takes out averages of what is trained; the rest becomes the student's.
struct TakeAverages {
    student: HashMap<ParamId, (Tensor<1>, bool)>,
    ids: Vec<ParamId>,
    pairs: Vec<(Tensor<1>, Tensor<1>)>,
}

impl ModuleMapper for TakeAverages {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, average, mapper) = param.consume();
        let (value, trained) =
            self.student.remove(&id).expect("teacher and student have the same parameters");
        if !trained {
            return Param::from_mapped_value(id, value.reshape(average.dims()), mapper);
        }
        let hollow = hollow(&average);
        self.ids.push(id);
        self.pairs.push((flat(average), value));
        Param::from_mapped_value(id, hollow, mapper)
    }
}

/// Puts back what was taken out.
struct Put(HashMap<ParamId, Tensor<1>>);

impl ModuleMapper for Put {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(value) = self.0.remove(&param.id) else { return param };
        param.map(|hollow| {
            let value = value.reshape(hollow.dims());
            if hollow.is_autodiff() { Tensor::from_inner(value).require_grad() } else { value }
        })
    }
}
